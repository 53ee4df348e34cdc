"""Score guided rollouts with the scorers of the run, as the stage `scores` does, but without judges."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from treadle.agent.contract import HIDDEN_COLUMNS, TASK_COLUMNS, Outcome, Task
from treadle.core.answers.extraction import extract_prediction
from treadle.core.runs.stage import Rows
from treadle.environments.registry import traits_of
from treadle.environments.scorers.base import Stores
from treadle.environments.scorers.scoring import OpenScorers
from treadle.environments.stored_rollout import StoredRollout
from treadle.rl.guided.settings import GuidedSettings
from treadle.rl.guided.tables import COPIED

_BATCH_ROWS = 64

GuidedRow = tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]
"""Row of a rollout, as the stage `rollouts` makes it, and the choice of each turn."""


def scored(
    settings: GuidedSettings, questions: Sequence[Rows], rows: Iterator[GuidedRow], store: Stores
) -> Iterator[dict[str, Any]]:
    """Yield the row of each rollout with its score, or with no score and an error if its scorer fails.

    `store` returns a store of the run by its name; scorers keep results there that they should not pay for again.
    """
    own = {name: one for name, one in settings.named_environments().items() if not traits_of(one).has_answers}
    tasks: dict[str, Task] = {}
    left = (row for table in questions for row in table.rows([*TASK_COLUMNS, *HIDDEN_COLUMNS]))
    with OpenScorers(settings.scorers, own, store=store) as scorers:
        while batch := list(itertools.islice(rows, _BATCH_ROWS)):
            wanted = {row["question_key"] for row, _ in batch}
            tasks = {key: task for key, task in tasks.items() if key in wanted}  # rows are in the order of the tasks
            missing = wanted - tasks.keys()
            while missing and (known := next(left, None)) is not None:
                if known["question_key"] in missing:
                    tasks[known["question_key"]] = Task.from_row(known)
                    missing.remove(known["question_key"])
            verdicts = scorers.scores([_Rollout(tasks[row["question_key"]], row) for row, _ in batch])
            for (row, choices), verdict in zip(batch, verdicts, strict=True):
                found = {"score": verdict.score, "correct": verdict.correct, "error": verdict.error}
                yield {**{name: row[name] for name in COPIED}, "choices": list(choices), **found}


@dataclass(frozen=True, slots=True)
class _Rollout:
    """Rollout with the properties that scorers read."""

    task: Task
    row: Mapping[str, Any]

    @property
    def status(self) -> str:
        """Status with which the rollout ended."""
        return str(self.row["status"])

    @property
    def prediction(self) -> str:
        """Answer of the rollout, as the stage `scores` extracts it."""
        return extract_prediction(orjson.loads(self.row["segments"]))

    @property
    def outcome(self) -> Outcome | None:
        """Outcome of the episode, as the tools reported it."""
        outcome = self.row["outcome"]
        return None if outcome is None else Outcome(**orjson.loads(outcome))

    def stored(self) -> StoredRollout:
        """Return the complete rollout, read from its row."""
        return StoredRollout.from_row(self.row)
