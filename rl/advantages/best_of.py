"""Let a critic choose among whole rollouts of held-out tasks: a diagnostic of the critic, not a policy.

The critic sees hidden information, which no policy has when it acts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treadle.core.runs.stage import Rows
from treadle.environments.rollouts.rows import FAILED
from treadle.rl.preferences.token_spans import only_sample, spans_of_sample

_COPIED = (
    "rollout_key", "question_key", "environment", "first_messages", "tool_schemas", "tokenizer_digest",
)  # fmt: skip
_READ = (*_COPIED, "sample_index", "samples")


def held_out_rollouts(inputs: Mapping[str, Sequence[Rows]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the rollouts of each held-out task that has at least two with a reward, as rows that the critic can score.

    A row has the columns of a candidate, which here is the whole rollout, and `reward`.
    """
    split = {row["question_key"]: row["split"] for row in _rows(inputs["questions"], ("question_key", "split"))}
    rewards = {
        row["rollout_key"]: row["score"]
        for row in _rows(inputs.get("scores", ()), ("rollout_key", "status", "score"))
        if row["status"] != FAILED and row["score"] is not None
    }
    rows = (row for row in _rows(inputs.get("rollouts", ()), _READ) if split.get(row["question_key"]) == "heldout")
    for _, group in itertools.groupby(rows, key=lambda row: row["question_key"]):
        found = [one for row in group if row["rollout_key"] in rewards and (one := _as_candidate(row)) is not None]
        if len(found) > 1:
            yield [one | {"reward": rewards[one["rollout_key"]]} for one in found]


def _rows(tables: Sequence[Rows], columns: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    return (row for table in tables for row in table.rows(columns))


def _as_candidate(row: Mapping[str, Any]) -> dict[str, Any] | None:
    sample, _ = only_sample(row)
    if sample is None:
        return None
    spans, prompt = spans_of_sample(sample), sample.prompt_ids_for_training
    return {
        **{name: row[name] for name in _COPIED},
        "turn_key": row["question_key"],
        "candidate": row["sample_index"],
        "prompt_ids": prompt,
        "num_first_ids": len(prompt),
        "ids": spans.ids,
        "mask": spans.mask,
        "num_tokens": sum(spans.mask),
    }


@dataclass(slots=True)
class BestOf:
    """Sums over held-out tasks of three rewards: the mean over rollouts, that of the critic's choice, and the best."""

    num_tasks: int = 0
    num_rollouts: int = 0
    mean: float = 0.0
    critic: float = 0.0
    best: float = 0.0

    def add(self, rewards: Sequence[float], scores: Sequence[float]) -> None:
        """Add one task, with the reward of each rollout and its score by the critic; the first of equal scores wins."""
        self.num_tasks += 1
        self.num_rollouts += len(rewards)
        self.mean += sum(rewards) / len(rewards)
        self.critic += rewards[max(range(len(scores)), key=lambda place: (scores[place], -place))]
        self.best += max(rewards)

    def metrics(self) -> dict[str, float]:
        """Return the means over tasks; empty without any."""
        if not self.num_tasks:
            return {}
        sums = {"mean": self.mean, "critic": self.critic, "best": self.best}
        counts = {"best_of.tasks": self.num_tasks, "best_of.rollouts": self.num_rollouts}
        return counts | {f"best_of.{name}_reward": value / self.num_tasks for name, value in sums.items()}
