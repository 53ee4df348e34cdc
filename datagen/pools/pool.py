"""Define a question's pool: its trajectories, how they were made, and which one is expanded next."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from treadle.agent.contract import Ledger
from treadle.agent.judges.cases import Verdict
from treadle.agent.trajectory import Trajectory
from treadle.core.config import digest_json
from treadle.datagen.pools.role_usage import RoleUsage


@dataclass(frozen=True, slots=True)
class PoolEntry:
    """A trajectory in a pool.

    Attributes:
        key: Key of the row, 16 hex digits.
        index: Place in the pool; 0 is the first initial rollout.
        round: Flywheel round that made it; 0 for initial rollouts.
        operator: Name of the operator that made it.
        parent: Key of the trajectory that the operator was applied to; None for initial rollouts.
        seed: Seed from which the seeds of its turns derive.
        trajectory: The rollout's trajectory.
        prediction: The extracted answer.
        verdict: The judge's verdict.
        edit_step: 1-based step of the parent that was replaced or followed by a hint.
        edit_text: The hint, the analysis or the new step.
        prompts: Digest of each prompt that was used, by name.
        usage: Usage of making and judging it, by role.
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
        """Number of calls that the agent requested, from the ledger."""
        return Ledger(self.trajectory.calls).requested.total()

    @property
    def correct(self) -> bool:
        """Whether the answer is known to be right; False also if the verdict is unknown."""
        return self.verdict.correct is True


def entry_key(question_key: str, policy: str, operator: str, number: int, parent: str) -> str:
    """Return the key of the trajectory that an operator made from a parent in a round: 16 hex digits."""
    return digest_json([question_key, policy, "pools", operator, number, parent])[:16]


def ranked(pool: Sequence[PoolEntry]) -> list[PoolEntry]:
    """Return the entries, best first: by higher score (math and choice: 1 or 0; qa: F1), then fewer calls, then age."""
    return sorted(pool, key=lambda entry: (-(entry.verdict.score or 0.0), entry.num_calls, entry.index))


def best_unexpanded(pool: Sequence[PoolEntry], expanded: Collection[int]) -> PoolEntry:
    """Return the best trajectory that was not expanded yet; if all were, the best one."""
    order = ranked(pool)
    return next((entry for entry in order if entry.index not in expanded), order[0])


def is_near_duplicate(first: str, second: str, threshold: float) -> bool:
    """Return whether two texts are equal or similar, with whitespace folded.

    Similar means that the Jaccard similarity of their sets of 5-character substrings is at least `threshold`.
    """
    first, second = " ".join(first.split()), " ".join(second.split())
    if first == second or threshold >= 1.0:
        return first == second
    ones, others = _character_shingles(first), _character_shingles(second)
    return len(ones & others) >= threshold * len(ones | others)


def _character_shingles(text: str) -> set[str]:
    return {text[start : start + 5] for start in range(max(len(text) - 4, 1))}
