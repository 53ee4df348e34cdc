"""Write dialogues as the rollouts of a stage instance, in place of the stage's function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from treadle.core.errors import DataError
from treadle.core.runs.stage import StageContext
from treadle.datagen.questions.layouts import RowRejected
from treadle.environments.rollouts.settings import job_columns, selected_questions
from treadle.environments.rollouts.tables import ROLLOUTS
from treadle.formats.colbench.rows import DialogueRows
from treadle.formats.colbench.trajectories import ColbenchTrajectory, Rejected, read_trajectories, task_key
from treadle.tasks.exchange.result_import import IMPORTED_SHA256

IMPORT_FILE = "imported.json"
_ROWS_AT_ONCE = 256


@dataclass(slots=True)
class DialogueImport:
    """Counts of an import.

    Attributes:
        num_rows: Dialogues that became rollouts.
        num_tasks: Tasks of these dialogues.
        num_masked_in: Tokens of these dialogues that count as the agent's; 0 without a tokenizer.
        reasons: Number of rejected rows by reason.
        first_rejected: Reason -> number of the first row rejected for it, and a description of the problem.
    """

    num_rows: int = 0
    num_tasks: int = 0
    num_masked_in: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    first_rejected: dict[str, tuple[int, str]] = field(default_factory=dict)

    def reject(self, number: int, error: RowRejected) -> None:
        """Count a rejected row."""
        self.reasons[error.reason] += 1
        self.first_rejected.setdefault(error.reason, (number, str(error)))

    def as_dict(self) -> dict[str, Any]:
        """Return the counts as JSON-compatible data."""
        return {
            "num_rows": self.num_rows,
            "num_tasks": self.num_tasks,
            "num_masked_in": self.num_masked_in,
            "left_out": dict(sorted(self.reasons.items())),
        }


class DialogueJob:
    """Writer of the dialogues of a file, which replaces the function of the stage `rollouts`."""

    def __init__(self, path: Path, sha256: str, rows: DialogueRows) -> None:
        self._path, self._sha256, self._rows = path, sha256, rows
        self.found = DialogueImport()

    def run(self, context: StageContext) -> Mapping[str, Any]:
        """Write the rollouts and return metrics, as `core.runs.stage.Stage.run` does."""
        questions = {}
        for row in selected_questions(
            context.settings.options, context.inputs["questions"], job_columns(reads_payload=True)
        ):
            reference = orjson.loads(row["payload"]).get("reference")
            if isinstance(reference, str):
                questions[task_key(row["question"], reference)] = row
        counts: Counter[str] = Counter()
        batch: list[dict[str, Any]] = []
        for row in self._converted(questions):
            counts["num_rollouts"] += 1
            counts[f"status_{row['status']}"] += 1
            counts["num_turns"] += row["num_turns"]
            batch.append({**row, "job": None})
            if len(batch) == _ROWS_AT_ONCE:
                context.write(ROLLOUTS.kind, batch)
                batch = []
        context.write(ROLLOUTS.kind, batch)
        if not self.found.num_rows:
            first = next((f": row {row}: {why}" for row, why in self.found.first_rejected.values()), "")
            raise DataError(f"no row of {self._path}, of {self.found.reasons.total():,}, can be imported{first}")
        told = {"source": self._path.name, "sha256": self._sha256, **self.found.as_dict()}
        context.add_file(ROLLOUTS.kind, IMPORT_FILE, orjson.dumps(told, option=orjson.OPT_INDENT_2))
        left_out = {f"left_out.{reason}": count for reason, count in sorted(self.found.reasons.items())}
        return {**counts, "imported_from": self._path.name, IMPORTED_SHA256: self._sha256, **left_out}

    def _converted(self, questions: Mapping[tuple[str, str], Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield rows in the order of the questions, as the stage writes them; rows of one question in file order."""
        by_task: dict[tuple[str, str], list[ColbenchTrajectory]] = {key: [] for key in questions}
        for one in read_trajectories(self._path):
            if isinstance(one, Rejected):
                self.found.reject(one.number, one.error)
            elif one.key not in questions:
                self.found.reject(one.number, RowRejected("not_asked", "its task is not among those that the run asks"))
            else:
                by_task[one.key].append(one)
        for key, samples in by_task.items():
            before = self.found.num_rows
            for one in samples:
                try:
                    row = self._rows.row(one, questions[key], self.found.num_rows - before)
                except RowRejected as error:
                    self.found.reject(one.number, error)
                    continue
                self.found.num_rows += 1
                self.found.num_masked_in += sum(sum(map(bool, sample["origins"])) for sample in row["samples"])
                yield row
            self.found.num_tasks += self.found.num_rows > before
