"""Write imported rows instead of running a stage's function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from treadle.core.errors import DataError
from treadle.core.runs.stage import Instance, StageContext
from treadle.datagen.pools.report import PoolReport
from treadle.datagen.pools.settings import PoolsSettings
from treadle.datagen.pools.tables import POOL_EVENTS, POOL_QUESTIONS, POOLS
from treadle.datagen.questions.layouts import RowRejected
from treadle.environments.registry import require_question
from treadle.environments.rollouts.settings import RolloutsSettings, selected_questions
from treadle.environments.rollouts.tables import ROLLOUTS
from treadle.formats.et_agent.import_result import ImportResult, no_usable_rows
from treadle.formats.et_agent.question_import import question_of
from treadle.formats.et_agent.records import INITIAL, ImportKind, ImportRecord, RejectedRow, read_records
from treadle.formats.et_agent.rows import ImportRows
from treadle.tasks.config import TreadleConfig
from treadle.tasks.exchange.policy_tokenizer import policy_tokenizer

IMPORT_FILE = "imported.json"


class ImportJob:
    """Replacement of a stage's function that writes the imported rows."""

    def __init__(self, path: Path, kind: ImportKind, sha256: str, config: TreadleConfig, wanted: Instance) -> None:
        self._path, self._kind, self._sha256, self._config = path, kind, sha256, config
        self._wanted = wanted
        self.found = ImportResult()
        self._known: set[str] = set()

    def run(self, context: StageContext) -> Mapping[str, Any]:
        """Write the imported rows and return metrics, as `core.runs.stage.Stage.run` does."""
        tables = context.inputs["questions"]
        self._known = {row["question_key"] for table in tables for row in table.rows(("question_key",))}
        questions = {row["question_key"]: row for row in selected_questions(context.settings.options, tables)}
        self.found.num_selected = len(questions)
        rows = self._rows()
        write = self._write_pools if self._kind == "pools" else self._write_rollouts
        metrics = write(context, self._taken(rows, questions))
        if not self.found.num_rows:
            raise DataError(no_usable_rows(self._path, self.found))
        told = {"source": self._path.name, "sha256": self._sha256, "kind": self._kind, **self.found.as_dict()}
        context.add_file(self._kind, IMPORT_FILE, orjson.dumps(told, option=orjson.OPT_INDENT_2))
        counts = {f"left_out.{reason}": count for reason, count in sorted(self.found.reasons.items())}
        return {
            **metrics,
            "imported_from": self._path.name,
            "imported_sha256": self._sha256,
            "questions_selected": self.found.num_selected,
            "questions_missing": self.found.num_selected - self.found.num_rows,
            **counts,
        }

    def _rows(self) -> ImportRows:
        settings = self._wanted.settings
        assert isinstance(settings, (PoolsSettings, RolloutsSettings))
        environment = require_question(settings.environment, "an import of et-agent")
        if isinstance(settings, PoolsSettings):
            policy = settings.roles["policy"]
            return ImportRows(environment, policy_tokenizer(policy.model), policy.name)
        return ImportRows(environment, policy_tokenizer(settings.model), settings.model_name)

    def _taken(
        self, rows: ImportRows, questions: Mapping[str, Mapping[str, Any]]
    ) -> Iterator[tuple[Mapping[str, Any], list[dict[str, Any]]]]:
        """Yield the questions of usable rows in the order of the file, each with the table rows made for it."""
        make = rows.pools if self._kind == "pools" else rows.rollouts
        lines: dict[str, int] = {}
        for record in read_records(self._path, self._kind):
            try:
                question = self._asked(record, questions, lines)
                assert isinstance(record, ImportRecord), "other records are not asked"
                made = make(record, question)
            except RowRejected as error:
                self.found.reject(record.number, error)
                continue
            lines[question["question_key"]] = record.number
            self.found.num_rows += 1
            self.found.num_trajectories += len(made)
            self.found.num_other_prompts += rows.differs(record, question)
            yield question, made

    def _asked(
        self,
        record: ImportRecord | RejectedRow,
        questions: Mapping[str, Mapping[str, Any]],
        lines: Mapping[str, int],
    ) -> Mapping[str, Any]:
        """Return the question of a row, among those that the stage itself would use; raise RowRejected.

        `lines`: question key -> number of the row already accepted for it.
        """
        parsed = question_of(record, self._config.questions)
        if parsed.key in lines:
            raise RowRejected("repeated", f"the same question as row {lines[parsed.key]}")
        if parsed.key not in questions:
            raise RowRejected(*self._why_not_asked(parsed.key))
        return questions[parsed.key]

    def _why_not_asked(self, key: str) -> tuple[str, str]:
        if key not in self._known:
            return (
                "not_asked",
                f"its question {key} is not among the run's: a duplicate of another there, or never read",
            )
        detail = f"{self._wanted.address} does not ask its question {key}: by its split, data sets or largest number"
        return "not_selected", detail

    def _write_rollouts(
        self, context: StageContext, taken: Iterator[tuple[Mapping[str, Any], list[dict[str, Any]]]]
    ) -> dict[str, Any]:
        counts: Counter[str] = Counter()
        for _, rows in taken:
            context.write(ROLLOUTS.kind, [{**row, "job": None} for row in rows])
            counts["num_rollouts"] += len(rows)
            for row in rows:
                counts[f"status_{row['status']}"] += 1
                for name in ("num_turns", "calls_requested", "calls_executed", "failed_calls"):
                    counts[name] += row[name]
        return dict(counts)

    def _write_pools(
        self, context: StageContext, taken: Iterator[tuple[Mapping[str, Any], list[dict[str, Any]]]]
    ) -> dict[str, Any]:
        report = PoolReport([])
        for question, rows in taken:
            told = _pool_question(question, rows)
            report.add(told, rows, [])
            context.write(POOLS.kind, rows)
            context.write(POOL_QUESTIONS.kind, [told])
        context.write(POOL_EVENTS.kind, [])
        return report.metrics()


def _pool_question(question: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        **{name: question[name] for name in ("question_key", "dataset", "domain")},
        "status": "ok",
        "error": None,
        "num_rounds": max(row["round"] for row in rows),
        "num_trajectories": len(rows),
        "num_correct": sum(row["correct"] is True for row in rows),
        "initial_correct": any(row["correct"] is True for row in rows if row["operator"] == INITIAL),
        "usage": "{}",
        "job": None,
    }
