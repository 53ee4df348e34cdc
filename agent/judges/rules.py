"""Judge answers by rules, without a model; comparisons that may take long run outside the event loop."""

from __future__ import annotations

import asyncio
import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import orjson

from treadle.agent.call_cache import CallCache
from treadle.agent.judges.cases import Case, Verdict
from treadle.core.answers.score import DEFAULT_F1_THRESHOLD
from treadle.core.config import digest_json
from treadle.core.errors import DeadlineExceeded, EngineError
from treadle.core.work_clock import work_clock

if TYPE_CHECKING:
    from treadle.core.answers.math_equal import Checker, SymbolicVerdict

RULES_VERSION = 3
"""Version in the judge's digest; increment it if the rules of `core.answers` decide differently, and with it the
version of the stage `scores`."""

MAX_INLINE_CHARS = 1_000
"""Longest prediction that is compared on the event loop, which takes milliseconds at worst; algebra never runs
there."""


@dataclass(frozen=True, slots=True)
class SymbolicLimits:
    """Limits of algebraic comparison.

    Attributes:
        workers: Number of worker processes.
        limit_s: CPU time of one comparison, in seconds.
        memory_mib: Memory limit of one worker, in MiB.
    """

    workers: int = 1
    limit_s: float = 2.0
    memory_mib: int = 1024


DEFAULT_SYMBOLIC = SymbolicLimits()


class RuleJudge:
    """Judge by rules: choice rule, token F1 or mathematical equality, depending on the domain.

    Results of algebra are cached, so that a resume gives the same verdicts: what a time limit allows depends on the
    machine.
    """

    def __init__(
        self, symbolic: SymbolicLimits | None = DEFAULT_SYMBOLIC, f1_threshold: float = DEFAULT_F1_THRESHOLD
    ) -> None:
        """Prepare the judge; `symbolic` None disables algebra, so answers that need it count as unequal."""
        self._symbolic = symbolic
        self._f1_threshold = f1_threshold
        self._checker: _Closable | None = None
        self._threads: ThreadPoolExecutor | None = None

    async def __aenter__(self) -> RuleJudge:
        """Start the workers. Raises ConfigError if algebra is enabled but not installed."""
        if self._symbolic is not None:
            self._checker = _Closable(self._symbolic)
        workers = self._symbolic.workers if self._symbolic is not None else 1
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="judge")
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Wait for comparisons in progress, each at most for its limit of CPU time."""
        await asyncio.to_thread(self._close)

    def digest(self) -> str:
        """Return a digest of rules, threshold and limits."""
        return rules_digest(self._symbolic, self._f1_threshold)

    async def verdict(self, case: Case, cache: CallCache) -> Verdict:
        """See `Verifier`. Raises ConfigError for an unknown domain."""
        if not case.answered:
            return Verdict(False, 0.0, "status")
        verdict = await self._decide(case, algebra=False)
        if verdict.correct or case.domain != "math" or verdict.method in ("empty", "choice") or not self._checker:
            return verdict
        unit = f"verdict-{case_digest(case, self.digest())}/rules"
        known = cache.get(unit)
        if known is not None:
            return Verdict(*orjson.loads(known))
        verdict = await self._decide(case, algebra=True)
        # After an error the next attempt compares again.
        if verdict.error is None:
            cache.append(unit, orjson.dumps([verdict.correct, verdict.score, verdict.method]))
        return verdict

    async def _decide(self, case: Case, *, algebra: bool) -> Verdict:
        decide = partial(_by_rules, case, self._checker if algebra else None, self._f1_threshold)
        if not algebra and len(case.prediction) <= MAX_INLINE_CHARS:
            return decide()
        assert self._threads is not None, "use a judge inside `async with`"
        try:
            async with work_clock().limit(case.deadline):
                return await asyncio.get_running_loop().run_in_executor(self._threads, decide)
        except TimeoutError:
            raise DeadlineExceeded("the time limit was reached before the answer was compared") from None

    def _close(self) -> None:
        if self._checker is not None:
            self._checker.is_closing = True
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        if self._checker is not None:
            self._checker.close()


class _Closable:
    """Symbolic checker that starts no comparison once it is closing, so that the one in progress is the last."""

    def __init__(self, limits: SymbolicLimits) -> None:
        from treadle.core.answers.symbolic import SymbolicChecker

        self.is_closing = False
        self._checker = SymbolicChecker(
            workers=limits.workers, limit_s=limits.limit_s, memory_mib=limits.memory_mib
        ).__enter__()

    def check(self, prediction: str, gold: str) -> SymbolicVerdict:
        """See `Checker`."""
        if self.is_closing:
            raise EngineError("the judge was closed while it compared answers")
        return self._checker.check(prediction, gold)

    def close(self) -> None:
        """End the worker processes."""
        self._checker.__exit__(None, None, None)


def _by_rules(case: Case, checker: Checker | None, f1_threshold: float) -> Verdict:
    from treadle.core.answers.rules import score_answer

    score = score_answer(
        case.prediction, case.answers, case.choices, case.domain, checker=checker, f1_threshold=f1_threshold
    )
    return Verdict(score.correct, score.score, score.scorer, error=score.error)


def rules_digest(symbolic: SymbolicLimits | None, f1_threshold: float) -> str:
    """Return a digest of everything that affects a verdict by rules."""
    limits = [symbolic.limit_s, symbolic.memory_mib] if symbolic is not None else None
    return digest_json([RULES_VERSION, f1_threshold, limits])


def case_digest(case: Case, judge: str) -> str:
    """Return 32 hex digits for what is judged and by which judge; seed, session and deadline are excluded."""
    content: list[object] = [judge, case.question, list(case.answers), list(case.choices), case.domain, case.prediction]
    if case.segments:
        content.append([[segment.kind, segment.text] for segment in case.segments])
    # Not digest_json: model output may contain lone surrogates.
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]
