"""Ask a model for the verdict or grade of a judge. See docs/behaviour/judges.md."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from weakref import WeakValueDictionary

from treadle.agent.call_cache import CallCache
from treadle.agent.judges.base import Grade, Judge
from treadle.agent.judges.cases import Case, Verdict
from treadle.agent.judges.correctness import Correctness
from treadle.agent.judges.rules import case_digest
from treadle.agent.judges.views import MAX_PREDICTION_CHARS, View, answer_view, trajectory_views
from treadle.agent.role import Reply, RoleModel
from treadle.core.errors import ContextTooLong, StageFailed
from treadle.core.seeds import derive_seed
from treadle.core.untrusted.concealment import exits_as_errors
from treadle.core.untrusted.sanitize import one_line

MAX_REQUESTS = 2
"""Most requests per case; the second one is sent only if the first reply is unreadable."""


class ModelJudge:
    """Judge that asks a model; it is shown nothing but the case.

    If a reply cannot be read, the model is asked a second time, with another seed and another nonce. If that reply
    is unreadable too, the verdict is unknown. An answer with a verdict in the same cache is not judged again.
    """

    def __init__(self, model: RoleModel, judge: Judge | None = None) -> None:
        """Prepare the judge; by default it judges correctness."""
        self._model = model
        self._judge = judge or Correctness()
        self._digest = self._judge.digest()
        self._busy: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def __aenter__(self) -> ModelJudge:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    def digest(self) -> str:
        """Return a digest of prompts, views and limits; model and sampling are excluded."""
        return self._digest

    async def verdict(self, case: Case, cache: CallCache) -> Verdict:
        """See `Verifier`. Raises StageFailed if the code of a judge fails."""
        if self._judge.subject == "answer":
            if not case.answered:
                return Verdict(False, 0.0, "status")
            if not case.prediction.strip():
                return Verdict(False, 0.0, "empty")
        if self._judge.NEEDS_ANSWERS and len(case.prediction) > MAX_PREDICTION_CHARS:
            return Verdict(False, 0.0, "too_long")
        digest = case_digest(case, f"{self._model.name} {self._digest}")
        # Two trajectories of a question may have the same answer at the same time: the second one waits for the cached
        # reply.
        lock = self._busy.setdefault(f"{case.session} {digest}", asyncio.Lock())
        async with lock:
            return await self._ask(case, cache, digest)

    async def _ask(self, case: Case, cache: CallCache, digest: str) -> Verdict:
        replies: list[Reply] = []
        found: bool | Grade | None = None
        error = None
        while found is None and error is None and len(replies) < MAX_REQUESTS:
            number = len(replies)
            try:
                reply = await self._reply(case, cache, digest, number)
            except ContextTooLong as failure:
                error = str(failure)
                break
            replies.append(reply)
            found = None if reply.is_truncated else self._read(reply.text)
        if found is None and error is None:
            said = f"{one_line(replies[-1].text)[:80]!r}"
            expected = "neither Correct nor Incorrect" if isinstance(self._judge, Correctness) else "nothing readable"
            error = f"the judge replied {expected}, but {said}"
        grade = found if isinstance(found, Grade) else None
        correct = self._judge.is_correct(grade.value) if grade is not None else found
        return Verdict(
            None if correct is None else bool(correct),
            grade.value if grade is not None else None if correct is None else float(bool(correct)),
            "model",
            tuple(reply.text for reply in replies),
            error,
            sum(reply.prompt_tokens for reply in replies),
            sum(reply.completion_tokens for reply in replies),
            grade.value if grade is not None else None,
            grade.parts if grade is not None else {},
        )

    async def _reply(self, case: Case, cache: CallCache, digest: str, number: int) -> Reply:
        """Return one reply, to the longest view that fits into the window; raise ContextTooLong if none does."""
        seed = derive_seed(case.seed, "verdict", digest, number)
        return await self._model.ask_first_fitting(
            (self._judge.checked_messages(view) for view in self._views(case, seed)),
            cache=cache,
            unit=f"verdict-{digest}/ask-{number}",
            seed=seed,
            session=case.session,
            deadline=case.deadline,
        )

    def _views(self, case: Case, seed: int) -> Iterator[View]:
        if self._judge.subject == "answer":
            yield answer_view(case, seed, with_gold=self._judge.NEEDS_ANSWERS)
            return
        answers = case.answers if self._judge.NEEDS_ANSWERS else None
        yield from trajectory_views(case.question, answers, case.segments, seed)

    def _read(self, text: str) -> bool | Grade | None:
        """Return what the judge's `read` returns for a reply; raise StageFailed if it fails or returns anything odd."""
        try:
            with exits_as_errors():
                found = self._judge.read(text)
        except Exception as error:
            raise self._failed(f"{type(error).__name__}: {error}") from error
        if found is None or isinstance(found, bool):
            return found
        if not isinstance(found, Grade):
            raise self._failed(f"it returned {type(found).__name__}, not True, False, a Grade or None")
        if odd := [name for name in found.parts if name not in self._judge.PARTS]:
            raise self._failed(f"it returned part {odd[0]!r}, which its PARTS do not declare")
        if odd_values := [value for value in (found.value, *found.parts.values()) if not _is_grade(value)]:
            raise self._failed(f"it returned {odd_values[0]!r}, not a number from 0 to 1")
        return Grade(float(found.value), {name: float(value) for name, value in found.parts.items()})

    def _failed(self, problem: str) -> StageFailed:
        return StageFailed(f"judge {self._judge.type}: {one_line(problem)}; correct its method `read`")


def _is_grade(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and 0 <= value <= 1
