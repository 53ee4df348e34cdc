"""Read the trajectories that rows are made from: those of pools, or rollouts with the verdicts of their scores."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from treadle.agent.contract import TASK_COLUMNS
from treadle.core.errors import ArtifactError
from treadle.core.runs.stage import Rows

POOLS, ROLLOUTS = "pools", "rollouts"


class Trajectories:
    """Trajectories of all tables of the stage's input, in their order.

    Attributes:
        kind: Input that they are from: `pools` or `rollouts`.
        tables: Tables of that input.
    """

    def __init__(self, inputs: Mapping[str, Sequence[Rows]]) -> None:
        self.kind = POOLS if inputs.get(POOLS) else ROLLOUTS
        self.tables = inputs.get(self.kind, ())
        self._scores = inputs.get("scores", ())
        self._questions = inputs["questions"]

    @property
    def num_rows(self) -> int:
        """Number of trajectories."""
        return sum(table.num_rows for table in self.tables)

    def batches(self, columns: Sequence[str]) -> Iterator[Iterator[pa.RecordBatch]]:
        """Yield the batches of each table."""
        for table in self.tables:
            yield table.batches(columns)

    def judged_batches(self, columns: Sequence[str]) -> Iterator[Iterator[pa.RecordBatch]]:
        """Yield the batches of each table with the verdicts in a further column `correct`.

        Raises ArtifactError if the scores are not exactly those of the rollouts.
        """
        if self.kind == POOLS:
            yield from self.batches([*columns, "correct"])
            return
        verdicts = (row for table in self._scores for row in table.rows(["rollout_key", "correct"]))
        for batches in self.batches(columns):
            yield (_with_verdicts(batch, verdicts) for batch in batches)
        if (spare := next(verdicts, None)) is not None:
            raise ArtifactError(f"the score of {spare['rollout_key']} is of no rollout that is read here; {_AGAIN}")

    def held_out(self) -> frozenset[str]:
        """Return the keys of the questions whose rollouts must not become rows.

        `pools` chooses the split itself, so its trajectories are never left out.
        """
        if self.kind == POOLS:
            return frozenset()
        rows = (row for table in self._questions for row in table.rows(["question_key", "split"]))
        return frozenset(row["question_key"] for row in rows if row["split"] != "train")


class QuestionReader:
    """Reader of single questions by key. If keys are requested in the order of the tables, each table is read once.

    Memory: the last few thousand questions that were read.
    """

    def __init__(self, tables: Sequence[Rows]) -> None:
        self._tables = tables
        self._rows = self._read()
        self._recent: dict[str, Mapping[str, Any]] = {}

    def __getitem__(self, key: str) -> Mapping[str, Any] | None:
        """Return a question; None if no table has it."""
        for _ in range(2):
            if key in self._recent:
                return self._recent[key]
            for row in self._rows:
                self._remember(row)
                if row["question_key"] == key:
                    return row
            self._rows = self._read()
        return self._recent.get(key)

    def _read(self) -> Iterator[Mapping[str, Any]]:
        return (row for table in self._tables for row in table.rows(TASK_COLUMNS))

    def _remember(self, row: Mapping[str, Any]) -> None:
        self._recent[row["question_key"]] = row
        if len(self._recent) > _REMEMBERED:
            del self._recent[next(iter(self._recent))]


_REMEMBERED = 4096
_AGAIN = "run `scores` again on the rollouts that are read here"


def _with_verdicts(batch: pa.RecordBatch, verdicts: Iterator[Mapping[str, object]]) -> pa.RecordBatch:
    taken = list(itertools.islice(verdicts, batch.num_rows))
    scored = [row["rollout_key"] for row in taken]
    for key, other in itertools.zip_longest(batch.column("rollout_key").to_pylist(), scored):
        if key != other:
            raise ArtifactError(f"rollout {key} has no score; {_AGAIN}")
    return batch.append_column("correct", pa.array([row["correct"] for row in taken], pa.bool_()))
