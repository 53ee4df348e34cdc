"""The pool of one question: its trajectories, what made them, and which of them is taken up next."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from treadle.agent.environment import Ledger
from treadle.agent.judges.base import Verdict
from treadle.agent.rollout import Trajectory


@dataclass(slots=True)
class RoleUsage:
    """What a role cost."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def add(self, prompt_tokens: int, completion_tokens: int, calls: int = 1) -> None:
        """Count answers of a model."""
        self.calls += calls
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens


def count_rollout(usage: dict[str, RoleUsage], trajectory: Trajectory, num_calls_before: int = 0) -> None:
    """Count what a rollout cost its policy and, in the calls that it made itself, the summarizer."""
    spent = trajectory.usage
    usage.setdefault("policy", RoleUsage()).add(spent.prompt_tokens, spent.completion_tokens, spent.num_requests)
    for call in trajectory.calls[num_calls_before:]:
        if call.prompt_tokens or call.completion_tokens:
            usage.setdefault("summarizer", RoleUsage()).add(call.prompt_tokens, call.completion_tokens)


@dataclass(frozen=True, slots=True)
class Entry:
    """A trajectory in a pool.

    Attributes:
        key: 16 hex digits, the row's key.
        index: Place in the pool; 0 is the first initial rollout.
        round: Flywheel round that made it; 0 for initial rollouts.
        operator: What made it.
        parent: Key of the trajectory that was edited or followed; None for initial rollouts.
        seed: From which its turns' seeds derive.
        trajectory: What the agent did.
        prediction: The extracted answer.
        verdict: Of the judge.
        edit_step: 1-based step of the parent that was replaced or followed by a hint.
        edit_text: The hint, the analysis or the new step.
        prompts: Name of each prompt that was used -> its digest.
        usage: Role -> cost of making and judging it.
    """

    key: str
    index: int
    round: int
    operator: str
    parent: str | None
    seed: int
    trajectory: Trajectory
    prediction: str
    verdict: Verdict
    edit_step: int | None = None
    edit_text: str = ""
    prompts: dict[str, str] = field(default_factory=dict)
    usage: dict[str, RoleUsage] = field(default_factory=dict)

    @property
    def num_calls(self) -> int:
        """Calls the agent asked for, from the ledger."""
        return Ledger(self.trajectory.calls).requested.total()

    @property
    def correct(self) -> bool:
        """Whether it is known to be right; an unknown verdict is not."""
        return self.verdict.correct is True


def ranked(pool: Sequence[Entry]) -> list[Entry]:
    """Best first: higher score (math and choice: right before wrong; qa: F1), then fewer calls, then age."""
    return sorted(pool, key=lambda entry: (-(entry.verdict.score or 0.0), entry.num_calls, entry.index))


def best_unexpanded(pool: Sequence[Entry], expanded: Collection[int]) -> Entry:
    """The best trajectory that was not expanded yet; where all were, the best one."""
    order = ranked(pool)
    return next((entry for entry in order if entry.index not in expanded), order[0])


def is_twin(first: str, second: str, least: float) -> bool:
    """Whether two texts are the same, white space folded, or similar: Jaccard of their runs of 5 characters."""
    first, second = " ".join(first.split()), " ".join(second.split())
    if first == second or least >= 1.0:
        return first == second
    ones, others = _runs_of_five(first), _runs_of_five(second)
    return len(ones & others) >= least * len(ones | others)


def _runs_of_five(text: str) -> set[str]:
    return {text[start : start + 5] for start in range(max(len(text) - 4, 1))}
