"""Judge answers of all domains: by rules, then, for math answers that no rule accepts, by a model if there is one."""

from __future__ import annotations

from treadle.agent.call_cache import CallCache
from treadle.agent.judges.cases import Case, Verdict
from treadle.agent.judges.correctness import Correctness
from treadle.agent.judges.model import ModelJudge
from treadle.agent.judges.rules import DEFAULT_SYMBOLIC, RuleJudge, SymbolicLimits, rules_digest
from treadle.agent.role import RoleModel
from treadle.core.answers.score import DEFAULT_F1_THRESHOLD
from treadle.core.config import digest_json


class AnswerJudge:
    """Judge for answers of every domain.

    Unfinished rollouts and empty answers are wrong. qa and choice use their rules. A math answer that the rules find
    equal is right; otherwise the model decides, and without a model it is wrong.
    """

    def __init__(
        self,
        symbolic: SymbolicLimits | None = DEFAULT_SYMBOLIC,
        f1_threshold: float = DEFAULT_F1_THRESHOLD,
        model: RoleModel | None = None,
    ) -> None:
        self._digest = answer_judge_digest(symbolic, f1_threshold, asks_model=model is not None)
        self._rules = RuleJudge(symbolic, f1_threshold)
        self._model = ModelJudge(model) if model is not None else None

    async def __aenter__(self) -> AnswerJudge:
        """Start the rules' workers. Raises ConfigError if algebra is enabled but not installed."""
        await self._rules.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._rules.__aexit__(*exc)

    def digest(self) -> str:
        """See `answer_judge_digest`."""
        return self._digest

    async def verdict(self, case: Case, cache: CallCache) -> Verdict:
        """See `Verifier`."""
        verdict = await self._rules.verdict(case, cache)
        decided = verdict.correct or verdict.method in ("status", "empty", "choice")
        if decided or case.domain != "math" or self._model is None:
            return verdict
        return await self._model.verdict(case, cache)


def answer_judge_digest(symbolic: SymbolicLimits | None, f1_threshold: float, *, asks_model: bool) -> str:
    """Return a digest of everything that affects an AnswerJudge's verdicts except the model itself.

    It needs no model, so it can be computed before a model is started.
    """
    return digest_json([rules_digest(symbolic, f1_threshold), Correctness().digest() if asks_model else None])
