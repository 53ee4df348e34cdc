"""Define the interface of judges: cases and verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from treadle.agent.call_cache import CallCache


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


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a judgement.

    Attributes:
        correct: None if unknown: the scorer failed, or the judge model's replies are unreadable. Unknown never counts
            as right.
        score: 1 or 0, or token F1 for qa; None if unknown.
        method: Rule or judge that decided, such as `qa_f1`, `math_symbolic` or `model`.
        raw: Unchanged replies of the judge model, if one was asked.
        error: Reason why the verdict is unknown.
        prompt_tokens, completion_tokens: Tokens of the judge model.
    """

    correct: bool | None
    score: float | None
    method: str
    raw: tuple[str, ...] = field(default=())
    error: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Judge(Protocol):
    """Interface of judges of answers. Many questions use one judge concurrently on one event loop.

    Usage: `async with judge:` around all verdicts.
    """

    async def __aenter__(self) -> Judge: ...

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
