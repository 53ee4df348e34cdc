"""What a judge is asked and what it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from treadle.agent.memory import Memory


@dataclass(frozen=True, slots=True)
class Case:
    """One answer to be judged.

    Attributes:
        question: As the model was asked it; options included.
        answers: Accepted gold answers.
        choices: Texts of the options; empty if not multiple choice.
        domain: math, qa or choice.
        prediction: The extracted answer; empty where there is none.
        answered: Whether the rollout ended with an answer; if not, nothing it said is right.
        seed: In [0, 2**31), the same whenever a question is answered the same: such an answer is judged once.
        session: Of the question. Requests with the same one stay on one endpoint.
        deadline: In the event loop's clock.
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
    """What a judge says.

    Attributes:
        correct: None where it is unknown: the scorer failed, or the judge model said nothing that can be read. Unknown
            never counts as right.
        score: 1 or 0, or token F1 for qa; None where unknown.
        method: The rule or judge that decided, such as `qa_f1`, `math_symbolic`, `model`.
        raw: The judge model's replies as they came, if one was asked.
        error: Why the verdict is unknown.
        prompt_tokens, completion_tokens: Of the judge model.
    """

    correct: bool | None
    score: float | None
    method: str
    raw: tuple[str, ...] = field(default=())
    error: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Judge(Protocol):
    """Says whether an answer is right. Used by many questions at once on one event loop.

    Usage: `async with judge:` around all verdicts.
    """

    async def __aenter__(self) -> Judge: ...

    async def __aexit__(self, *exc: object) -> None: ...

    def digest(self) -> str:
        """Hex digest of all that decides a verdict: rules, prompts, thresholds."""
        ...

    async def verdict(self, case: Case, memory: Memory) -> Verdict:
        """Judge one answer; what a model says is remembered in `memory`, the question's, before it is looked at.

        Units are named after what is judged, `verdict-<digest>/...`, so that the same answer is not judged again.
        Raises ModelError where a judge model cannot be asked: the work is then owed.
        """
        ...
