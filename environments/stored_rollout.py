"""Define the part of a finished rollout that scorers may see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from treadle.agent.contract import CallRecord, Outcome
from treadle.agent.dialects.base import Segment
from treadle.agent.trajectory import Trajectory
from treadle.core.answers.extraction import SYSTEM_KINDS, extract_prediction
from treadle.environments.rollouts.rows import calls_of

STORED_COLUMNS = ("status", "truncated", "segments", "tool_calls", "turn_rewards", "reward", "outcome")
"""Columns of `rollouts` that make a `StoredRollout`."""


@dataclass(frozen=True, slots=True)
class StoredRollout:
    """A finished rollout as a scorer sees it.

    Attributes:
        status: How it ended; see `treadle.agent.trajectory.STATUSES`.
        truncated: Whether it ended before its task did.
        segments: Everything after the prompt, in typed pieces.
        calls: Records of its tool calls.
        turn_rewards: Reward of each turn; empty if no turn has one.
        reward: The outcome's reward, else the sum of the turns'; None if unknown.
        outcome: Outcome of the episode, as the environment reported it.
    """

    status: str
    truncated: bool
    segments: Sequence[Segment]
    calls: Sequence[CallRecord]
    turn_rewards: Sequence[float | None]
    reward: float | None
    outcome: Outcome | None

    @classmethod
    def of(cls, trajectory: Trajectory) -> StoredRollout:
        """Return a trajectory as a scorer sees it."""
        return cls(
            trajectory.status,
            trajectory.truncated,
            trajectory.segments,
            trajectory.calls,
            trajectory.turn_rewards,
            trajectory.reward,
            trajectory.outcome,
        )

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> StoredRollout:
        """Read a row with `STORED_COLUMNS`."""
        return cls(
            row["status"],
            row["truncated"],
            [Segment(**segment) for segment in orjson.loads(row["segments"])],
            calls_of(row),
            list(row["turn_rewards"]),
            row["reward"],
            None if row["outcome"] is None else Outcome(**orjson.loads(row["outcome"])),
        )

    @property
    def turns(self) -> list[str]:
        """Texts that the model wrote without interruption, in their order."""
        texts: list[str] = []
        was_model = False
        for segment in self.segments:
            is_model = segment.kind not in SYSTEM_KINDS
            if is_model and was_model:
                texts[-1] += segment.text
            elif is_model:
                texts.append(segment.text)
            was_model = is_model
        return texts

    @property
    def last_turn(self) -> str:
        """The last text that the model wrote; empty if it wrote none."""
        return self.turns[-1] if self.turns else ""

    @property
    def answer(self) -> str:
        """The answer that it ended with, as `scores` extracts it; empty if there is none."""
        return extract_prediction({"kind": part.kind, "text": part.text} for part in self.segments)
