"""Define what judges of answers take and return: cases and verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from treadle.agent.call_cache import CallCache
from treadle.agent.dialects.base import Segment


@dataclass(frozen=True, slots=True)
class Case:
    """Answer to be judged.

    Attributes:
        question: Text that the model was asked, options included.
        answers: Accepted gold answers.
        choices: Texts of the options; empty if not multiple choice.
        domain: Rule that scores the answer: math, qa, qa_characters or choice.
        prediction: The extracted answer; empty if there is none.
        answered: Whether the rollout ended with an answer; if not, the verdict is wrong.
        seed: Seed in [0, 2**31). It is the same for equal answers to a question, so that such an answer is judged once.
        session: Session of the question. Requests of one session go to one endpoint.
        deadline: Time of the work clock (`treadle.core.work_clock`).
        segments: All segments of the trajectory, results included; empty if the judge is shown the answer only.
    """

    question: str
    answers: Sequence[str]
    choices: Sequence[str]
    domain: str
    prediction: str
    answered: bool
    seed: int
    session: str
    deadline: float
    segments: Sequence[Segment] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a judgement.

    Attributes:
        correct: None if unknown: the scorer failed, or the judge model's replies are unreadable. Unknown never counts
            as right.
        score: 1 or 0, token F1 for qa, or the grade; None if unknown.
        method: Rule or judge that decided, such as `qa_f1`, `math_symbolic` or `model`.
        raw: Unchanged replies of the judge model, if one was asked.
        error: Reason why the verdict is unknown.
        prompt_tokens, completion_tokens: Tokens of the judge model.
        grade: Grade in [0, 1] of a judge that gives grades; None for one that gives verdicts.
        parts: Numbers in [0, 1] of the judge, by the names that it declares.
    """

    correct: bool | None
    score: float | None
    method: str
    raw: tuple[str, ...] = field(default=())
    error: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    grade: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)


class Verifier(Protocol):
    """Interface of what verifies answers: rules, a judge model or both.

    Many questions use one verifier concurrently on one event loop.

    Usage: `async with verifier:` around all verdicts.
    """

    async def __aenter__(self) -> Verifier: ...

    async def __aexit__(self, *exc: object) -> None: ...

    def digest(self) -> str:
        """Return a hex digest of everything that affects a verdict: rules, prompts, thresholds."""
        ...

    async def verdict(self, case: Case, cache: CallCache) -> Verdict:
        """Judge one answer; replies of a model are cached in `cache`, the question's cache, before they are used.

        Units are named after the digest of the case, `verdict-<digest>/...`, so that an equal answer is not judged
        again. Raises ModelError if a request to a judge model fails; the work then stays pending.
        """
        ...
