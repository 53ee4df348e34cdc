"""Import results of another program as the result of a stage, so that later stages continue from them.

The record has the fingerprint that the stage itself would produce, so the instance is not run again. The record's
metrics, the artifact (`imported.json`) and its rows state that it was imported, and from which content.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from treadle.core.chat import ChatTokenizer
from treadle.core.engines.config import EMBEDDED
from treadle.core.engines.serving import embedded_folder
from treadle.core.errors import ConfigError, DataError, RunError
from treadle.core.llm.config import ModelSettings
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance, StageContext
from treadle.core.store.exported import new_folder, write_facts
from treadle.core.store.leases import holder_of
from treadle.core.untrusted.input_files import InputRow, file_sha256
from treadle.datagen.pools.report import PoolReport
from treadle.datagen.pools.settings import PoolsSettings
from treadle.datagen.pools.tables import POOL_EVENTS, POOL_QUESTIONS, POOLS
from treadle.datagen.questions.layouts import RowRejected
from treadle.datagen.questions.rows import ParsedQuestion, parse_row
from treadle.datagen.questions.sources import QuestionsSettings, SourceSettings
from treadle.environments.registry import require_question
from treadle.environments.rollouts.settings import RolloutsSettings, selected_questions
from treadle.environments.rollouts.tables import ROLLOUTS
from treadle.formats.et_agent.records import INITIAL, ImportKind, ImportRecord, RejectedRow, read_records
from treadle.formats.et_agent.rows import ImportRows
from treadle.stages.models import served_tokenizer, tokenizer_folder
from treadle.tasks.catalog import instance
from treadle.tasks.config import TreadleConfig

QUESTIONS_FILE = "questions.jsonl"
SOURCES_FILE = "questions.toml"
IMPORT_FILE = "imported.json"
_MAX_REPORTED = 10_000
_COUNTS = ("num_rows", "num_trajectories", "num_other_prompts", "num_selected")
_SOURCE = SourceSettings(
    path=Path(QUESTIONS_FILE), dataset="imported", source_field="source", question_field="question",
    answer_field="answer", answer_form="plain",
)  # fmt: skip


@dataclass(slots=True)
class ImportResult:
    """Result of reading a file to import."""

    num_rows: int = 0
    """Number of accepted rows."""
    num_trajectories: int = 0
    num_other_prompts: int = 0
    """Number of rows whose agent had another system message than this run's."""
    num_selected: int = 0
    """Number of questions that the stage itself would use; those without a row are missing in the result."""
    rejected_rows: list[RejectedRow] = field(default_factory=list)
    """Rejected rows, at most the first 10,000."""
    reasons: Counter[str] = field(default_factory=Counter)

    def reject(self, number: int, error: RowRejected) -> None:
        """Count a rejected row."""
        self.reasons[error.reason] += 1
        if len(self.rejected_rows) < _MAX_REPORTED:
            self.rejected_rows.append(RejectedRow(number, error.reason, str(error)))

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-able form."""
        return {
            **{name: getattr(self, name) for name in _COUNTS},
            "left_out": dict(sorted(self.reasons.items())),
            "rejected": [
                {"line": one.number, "reason": one.reason, "detail": one.detail[:300]} for one in self.rejected_rows
            ],
        }


def write_questions(
    path: Path, kind: ImportKind, config: TreadleConfig, domains: Mapping[str, str], target: Path, *, replace_it: bool
) -> int:
    """Write the questions of a file, and a configuration that reads them, into a new folder; return their number.

    `domains`: data set -> domain, for data sets without a known one. Raises DataError if no row has a question and
    trajectories, ConfigError if `target` cannot be used (see `new_folder`), StorageError.
    """
    settings = config.questions.model_copy(update={"domains": {**config.questions.domains, **domains}})
    found, seen = ImportResult(), set[str]()
    with new_folder(target, replace=replace_it) as folder:
        with (folder / QUESTIONS_FILE).open("wb") as file:
            for record in read_records(path, kind):
                try:
                    question = _question_of(record, settings)
                except RowRejected as error:
                    found.reject(record.number, error)
                    continue
                if question.key not in seen:
                    seen.add(question.key)
                    line = {"question": question.question, "answer": question.answers, "source": question.dataset}
                    file.write(orjson.dumps({**line, "row": record.number}) + b"\n")
        if not seen:
            raise DataError(_no_usable_rows(path, found))
        (folder / SOURCES_FILE).write_text(_sources_toml(target.absolute(), domains), encoding="utf-8")
        write_facts(folder, {"kind": "questions", "format": kind, "source": path.name, "num_questions": len(seen)})
    return len(seen)


def import_records(
    path: Path, kind: ImportKind, config: TreadleConfig, run: Run, address: Address, *, force: bool = False
) -> tuple[StageRecord, ImportResult]:
    """Import the rows of a file as the result of a stage instance whose questions already exist.

    Rows that cannot be used are left out, including those whose question the stage itself would not use. Raises
    RunError if there is another result or unfinished work (both unless `force`), or if other processes work on its
    shards; DataError if no row can be used; and as `execute` does.
    """
    wanted = instance(config, address)
    if wanted.stage.name != kind:
        raise ConfigError(f"{address} makes no {kind}; name an instance such as {_EXAMPLES[kind]}")
    sha256, earlier = file_sha256(path), run.record(address)
    is_same = earlier is not None and earlier.metrics.get("imported_sha256") == sha256
    if earlier is not None and not is_same and not force:
        made = f"imported from {earlier.imported_from}" if earlier.imported_from else "made by the stage itself"
        raise RunError(f"{address} of run {run.run_id} has a result already, {made}; replace it with --force")
    _check_begun(run, address, force=force)
    job = _Import(path, kind, sha256, config, wanted)
    # The file's content differs from what the stage would make, so equal work of an earlier iteration must not be
    # reused.
    stage = replace(wanted.stage, run=job.run, work=None, jobs=None, depends_on_address=True)
    record = execute(replace(wanted, stage=stage), run, force=force)
    return record, job.found


def _check_begun(run: Run, address: Address, *, force: bool) -> None:
    """Raise RunError if the import would remove work of the stage: already paid for, or in progress on helpers."""
    status, attempts = run.status(address), run.attempts(address)
    if status.state == "running":
        return  # `execute` asks for its lease next and reports who holds it.
    if status.num_finished and not force:
        raise RunError(
            f"{address} of run {run.run_id} was started; {status.num_finished:,} are finished in its journal, which "
            "an import would delete; continue it (`treadle status` shows how), or import anyway with --force"
        )
    shards = run.shards(address, attempts[-1].journal_name) if attempts else None
    if shards is None or (plan := shards.plan()) is None:
        return
    if any(holder_of(run.storage, shards.lock_key(index)) for index in range(plan.num_shards)):
        raise RunError(
            f"other processes work at shards of {address} of run {run.run_id}; wait until they are done, or stop them, "
            "then import again"
        )


_EXAMPLES: Mapping[ImportKind, str] = {"pools": "1/pools", "rollouts": "1/rollouts@base or 1/rollouts@phase-1"}


class _Import:
    """Replacement of a stage's function that writes the imported rows."""

    def __init__(self, path: Path, kind: ImportKind, sha256: str, config: TreadleConfig, wanted: Instance) -> None:
        self._path, self._kind, self._sha256, self._config = path, kind, sha256, config
        self._wanted = wanted
        self.found = ImportResult()
        self._known: set[str] = set()

    def run(self, context: StageContext) -> Mapping[str, Any]:
        """Write the imported rows and return metrics, as `core.stage.Stage.run` does."""
        tables = context.inputs["questions"]
        self._known = {row["question_key"] for table in tables for row in table.rows(("question_key",))}
        questions = {row["question_key"]: row for row in selected_questions(context.settings.options, tables)}
        self.found.num_selected = len(questions)
        rows = self._rows()
        write = self._write_pools if self._kind == "pools" else self._write_rollouts
        metrics = write(context, self._taken(rows, questions))
        if not self.found.num_rows:
            raise DataError(_no_usable_rows(self._path, self.found))
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
            return ImportRows(environment, _tokenizer(policy.model), policy.name)
        return ImportRows(environment, _tokenizer(settings.model), settings.model_name)

    def _taken(
        self, rows: ImportRows, questions: Mapping[str, Mapping[str, Any]]
    ) -> Iterator[tuple[Mapping[str, Any], list[dict[str, Any]]]]:
        """Yield questions with their rows, in the order of the file."""
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
        parsed = _question_of(record, self._config.questions)
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


def _tokenizer(model: ModelSettings) -> ChatTokenizer | None:
    """Return the policy's tokenizer, as `sft_rows` uses it; None without a local one, so that rows have only text."""
    folder = tokenizer_folder(model) or served_tokenizer(model)
    if folder is None:
        return None
    return ChatTokenizer.load(embedded_folder("tokenizer") if folder == Path(EMBEDDED) else folder)


def _question_of(record: ImportRecord | RejectedRow, settings: QuestionsSettings) -> ParsedQuestion:
    """Return the question of a row as the stage `questions` parses it; raise RowRejected."""
    if isinstance(record, RejectedRow):
        raise RowRejected(record.reason, record.detail)
    try:
        return parse_row(InputRow(record.number, record.fields), _SOURCE, settings)
    except RowRejected as error:
        more = "; or give --domain NAME=DOMAIN" if error.reason == "unknown_source" else ""
        raise RowRejected(error.reason, f"{error}{more}") from None


def _sources_toml(folder: Path, domains: Mapping[str, str]) -> str:
    """Return a configuration file that reads the questions."""
    lines = [
        "# Pass this file after the configuration of a run:  treadle run config.toml questions.toml --run NAME",
        "",
    ]
    if domains:
        lines += ["[questions.domains]", *(f"{_toml(name)} = {_toml(domain)}" for name, domain in domains.items()), ""]
    keys = {"path": str(folder / QUESTIONS_FILE), "dataset": _SOURCE.dataset, "source_field": "source"}
    keys |= {"question_field": "question", "answer_field": "answer", "answer_form": "plain"}
    lines += ["[[questions.sources]]", *(f"{name} = {_toml(value)}" for name, value in keys.items())]
    return "\n".join(lines) + "\n"


def _toml(text: str) -> str:
    # JSON strings are valid TOML strings, except that JSON does not escape DEL.
    return orjson.dumps(text).decode().replace("\x7f", "\\u007f")


def _no_usable_rows(path: Path, found: ImportResult) -> str:
    first = found.rejected_rows[0] if found.rejected_rows else None
    why = f"; row {first.number}: {first.detail}" if first is not None else ""
    return f"none of the {found.reasons.total():,} rows of {path} can be imported{why}"
