"""Run the stage `questions`: validate the rows of the user's files; rejected rows get a reason.

Documented in docs/behaviour/questions.md.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from treadle.core.errors import ConfigError, DataError, StageFailed
from treadle.core.runs.stage import StageContext
from treadle.core.store.storage import storage_errors
from treadle.core.untrusted.sanitize import one_line
from treadle.datagen.exploration.mixture import check_not_held_out, chosen_tasks, state_of
from treadle.datagen.questions.contamination import BenchmarkIndex
from treadle.datagen.questions.duplicates import DuplicateIndex, identity
from treadle.datagen.questions.environment_tasks import FindTasks, find_tasks, task_rows
from treadle.datagen.questions.layouts import RowRejected
from treadle.datagen.questions.payload import EMPTY, masked, texts_in
from treadle.datagen.questions.rows import ParsedQuestion, benchmark_questions, parse_row, with_split_warning
from treadle.datagen.questions.source_rows import source_rows
from treadle.datagen.questions.sources import QuestionsSettings, SourceSettings, Split
from treadle.datagen.questions.tables import QUARANTINE, QUESTIONS
from treadle.environments.mixture import METRIC_PREFIX

_log = logging.getLogger(__name__)

_SHOWN_CHARS = 500
"""Number of characters of a raw row that are written to the file of unusable rows."""
_NAMES_SHOWN = 10
_DUPLICATE_REASONS = frozenset({"exact_duplicate", "near_duplicate", "contaminated"})
"""Reasons to leave out a usable row."""
_UNSUPPORTED_REASONS = frozenset({"needs_picture", "needs_file", "no_gold_answer"})
"""Reasons that make a valid row unusable here; they do not count towards the error rate."""


@dataclass(slots=True)
class _SourceTally:
    """Counts of one source, with its first unusable row for the error message."""

    rows: int = 0
    kept: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    first_problem: str = ""

    @property
    def unusable(self) -> int:
        return sum(count for reason, count in self.reasons.items() if reason not in _DUPLICATE_REASONS)

    @property
    def errors(self) -> int:
        return self.unusable - sum(self.reasons[reason] for reason in _UNSUPPORTED_REASONS)

    def __str__(self) -> str:
        counts = ", ".join(f"{reason} {count:,}" for reason, count in self.reasons.most_common())
        return f"{self.rows:,} rows, {self.unusable:,} unusable ({counts}); first: {self.first_problem}"


class _QuestionsRun:
    """State of one run of the stage: the questions kept so far, and counts."""

    def __init__(self, context: StageContext, settings: QuestionsSettings, find_tasks: FindTasks) -> None:
        self._context = context
        self._settings = settings
        self._find_tasks = find_tasks
        self._duplicates = DuplicateIndex(settings.near_duplicate_threshold)
        self._benchmarks = BenchmarkIndex(settings.contamination_overlap)
        self.unusable_file = context.scratch / "unusable_rows.jsonl"
        """JSON lines of the unusable rows, for messages: a failing stage writes no quarantine table."""
        self.datasets: Counter[str] = Counter()
        self.splits: Counter[str] = Counter()
        self.environments: Counter[str] = Counter()
        self._environment_of: dict[str, str] = {}
        """Environment of each data set."""
        self.benchmark_rows_skipped = 0
        self._explored = context.inputs.get("exploration", ())
        self._held_out: set[str] = set()
        """Keys of held-out tasks, if tasks that were made by exploring are mixed in."""
        self.num_left_out = 0
        """Number of training tasks of the sources that the mixture leaves out."""
        self.mixed: Counter[str] = Counter()
        """Number of tasks made by exploring that are mixed in, and of the others by reason."""

    def add_benchmark(self, source: SourceSettings) -> None:
        """Read a benchmark whose questions are excluded from training; raise DataError if it has no question."""
        before = len(self._benchmarks)
        problem = ""
        for row in source_rows(source):
            try:
                questions = benchmark_questions(row, source, self._settings)
            except RowRejected as rejection:
                self.benchmark_rows_skipped += 1
                problem = problem or f"row {row.number}: {rejection}"
            else:
                for question in questions:
                    self._benchmarks.add(source.label, row.number, question)
        if len(self._benchmarks) == before:
            raise DataError(
                f"benchmark {source.label} has no row with a question; set question_field under "
                f"questions.decontaminate; {problem}"
            )

    def add_source(self, source: SourceSettings) -> _SourceTally:
        """Read one source; raise StageFailed if it has no usable row."""
        tally = _SourceTally()
        tasks = task_rows(source, self._settings, self._find_tasks) if source.is_environment else source_rows(source)
        for row in with_split_warning(tasks, source):
            tally.rows += 1
            try:
                question = parse_row(row, source, self._settings)
                split = self._admit(question)
            except RowRejected as rejection:
                shown = masked(row, source.hidden)
                self._reject(shown.number, shown.raw, source, rejection, tally)
            else:
                tally.kept += 1
                self._keep(question, split, source)
        if tally.unusable == tally.rows:
            raise StageFailed(f"no row of {source.label} can be used: {tally}; full list: {self.unusable_file}")
        if tally.unusable > tally.errors:
            left_out = sorted(_UNSUPPORTED_REASONS & tally.reasons.keys())
            counts = ", ".join(f"{reason} {tally.reasons[reason]:,}" for reason in left_out)
            _log.warning("%s: rows that cannot be asked as text or scored are left out: %s", source.label, counts)
        return tally

    def mix(self) -> None:
        """Add the tasks that were made by exploring, as many as `mixture` sets; held-out tasks are not among them."""
        usable = [row for table in self._explored for row in table.rows(QUESTIONS.schema.names) if self._is_usable(row)]
        originals = self.splits["train"] + self.num_left_out
        for row in chosen_tasks(usable, originals, self._settings.mixture):
            self.mixed["synthetic"] += 1
            self._write(row)
        self.mixed["synthetic_unused"] += len(usable) - self.mixed["synthetic"]

    def _is_usable(self, row: Mapping[str, Any]) -> bool:
        """Return whether a task repeats no other task and no benchmark question; raise DataError if it is held out."""
        check_not_held_out(row, self._held_out)
        duplicate = self._duplicates.add(
            row["question_key"],
            row["question"],
            tuple(row["answers"]),
            (),
            heldout=False,
            payload=state_of(row),
            environment=row["environment"],
        )
        reason = "synthetic_duplicate" if duplicate is not None else ""
        if not reason and self._benchmarks.find(row["question"]):
            reason = "synthetic_contaminated"
        self.mixed.update([reason] if reason else [])
        return not reason

    def _admit(self, question: ParsedQuestion) -> Split:
        """Return the question's split; raise RowRejected for a duplicate or a contaminated training question."""
        split = question.split or self._draw_split(question)
        if split == "train":
            self._check_not_contaminated(question)
        duplicate = self._duplicates.add(
            question.key,
            question.question,
            question.answers,
            question.choices,
            heldout=split == "heldout",
            payload=question.payload,
            environment=question.environment,
        )
        if duplicate is not None:
            detail = f"repeats question {duplicate.key}"
            if duplicate.kind == "near_duplicate":
                detail += f" with similarity {duplicate.similarity:.3f}"
            raise RowRejected(duplicate.kind, detail + ("" if duplicate.same_answers else ", but with other answers"))
        return split

    def _check_not_contaminated(self, question: ParsedQuestion) -> None:
        """Raise RowRejected if the question, or a text in its payload, repeats a benchmark question."""
        hidden = texts_in(question.payload) if len(self._benchmarks) else []
        # The payload's texts are also compared joined, because one text may be stored as several lines.
        for text in dict.fromkeys((question.question, *(("\n".join(hidden), *hidden) if hidden else ()))):
            if found := self._benchmarks.find(text):
                where = "" if text == question.question else "in the payload: "
                what = f"question of benchmark {found.benchmark} row {found.row}: {where}{found.match}"
                raise RowRejected("contaminated", what)

    def _draw_split(self, question: ParsedQuestion) -> Split:
        text = identity(question.question, question.choices)
        if question.payload != EMPTY:
            text += f"\n{question.payload}"
        share = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) / 2**64
        return "heldout" if share < self._settings.heldout_share else "train"

    def _check_environment(self, question: ParsedQuestion, source: SourceSettings) -> None:
        """Raise DataError for a data set of several environments, which a report would refuse after all the work."""
        first = self._environment_of.setdefault(question.dataset, question.environment)
        if first != question.environment:
            raise DataError(
                f"data set {one_line(question.dataset)!r} has tasks of the environments {first} and "
                f"{question.environment}, whose figures are not comparable; give the rows of {source.label} another "
                "name of their data set"
            )

    def _keep(self, question: ParsedQuestion, split: Split, source: SourceSettings) -> None:
        self._check_environment(question, source)
        if split == "heldout" and self._explored:
            self._held_out.add(question.key)
        if split == "train" and self._explored and not self._settings.mixture.originals:
            self.num_left_out += 1
            return
        row = {
            **{name: value for name, value in asdict(question).items() if name != "kind"},
            "question_key": question.key,
            "answers": list(question.answers),
            "choices": list(question.choices),
            "split": split,
            "source_file": source.label,
        }
        self._write(row)

    def _write(self, row: Mapping[str, Any]) -> None:
        self.datasets[row["dataset"]] += 1
        self.splits[row["split"]] += 1
        self.environments[row["environment"]] += 1
        self._context.write(QUESTIONS.kind, [row])

    def _reject(
        self, number: int, raw: str, source: SourceSettings, rejection: RowRejected, tally: _SourceTally
    ) -> None:
        rejected = {
            "source_file": source.label,
            "source_row": number,
            "dataset": source.dataset_name,
            "reason": rejection.reason,
            "detail": str(rejection),
            "raw": raw,
        }
        self._context.write(QUARANTINE.kind, [rejected])
        tally.reasons[rejection.reason] += 1
        if rejection.reason not in _DUPLICATE_REASONS:
            tally.first_problem = tally.first_problem or f"row {number}: {rejection}"
            with storage_errors("write", self.unusable_file), self.unusable_file.open("a", encoding="ascii") as file:
                file.write(json.dumps(rejected | {"raw": raw[:_SHOWN_CHARS]}) + "\n")


def run_questions(context: StageContext, find_tasks: FindTasks = find_tasks) -> Mapping[str, Any]:
    """Read, validate and deduplicate all sources; return counts by reason, data set and split."""
    settings: QuestionsSettings = context.settings
    if not settings.sources:
        raise ConfigError("no questions are configured; add a source under questions.sources with path or hub")
    context.progress.start(total=len(settings.sources), done=0, unit="sources")
    _warn_about_web_routes(settings)
    intake = _QuestionsRun(context, settings, find_tasks)
    for benchmark in settings.decontaminate:
        intake.add_benchmark(benchmark)
    tallies = {}
    for source in settings.sources:
        tallies[source.label] = intake.add_source(source)
        context.progress.advance(source=source.label, questions=sum(intake.splits.values()))
    if context.inputs.get("exploration"):
        intake.mix()
    _warn_about_unused_routes(settings, intake.datasets)
    _check_error_rate(tallies, settings, context.accept_failures, intake.unusable_file)
    reasons = sum((tally.reasons for tally in tallies.values()), Counter[str]())
    _check_any_left(tallies, reasons)
    return _metrics(intake, tallies, reasons)


def _warn_about_web_routes(settings: QuestionsSettings) -> None:
    """Warn about custom benchmarks that need web search, because the environment is not known here."""
    for name, benchmark in settings.benchmarks.items():
        if "search" in benchmark.model_fields_set and benchmark.search != "local":
            _log.warning(
                'questions.benchmarks.%s: search = "%s" takes effect only if environment.search.web is set; without it '
                "all questions are searched in the corpus",
                name,
                benchmark.search,
            )


def _warn_about_unused_routes(settings: QuestionsSettings, datasets: Collection[str]) -> None:
    """Warn about names in `questions.search` that match no data set, because they are probably misspelt."""
    known = {name.lower() for name in datasets}
    if unused := sorted(name for name in settings.search if name.lower() not in known):
        _log.warning(
            "questions.search: no question is from %s; data sets: %s",
            ", ".join(map(repr, unused)),
            ", ".join(repr(one_line(name)) for name in sorted(datasets)[:_NAMES_SHOWN]) or "no questions",
        )


def _check_error_rate(
    tallies: Mapping[str, _SourceTally], settings: QuestionsSettings, accept_failures: bool, unusable: Path
) -> None:
    rows = sum(tally.rows for tally in tallies.values())
    errors = sum(tally.errors for tally in tallies.values())
    if errors / rows > settings.max_error_rate and not accept_failures:
        worst = max(tallies, key=lambda name: tallies[name].errors)
        raise StageFailed(
            f"{errors:,} of {rows:,} question rows are unusable, more than max_error_rate "
            f"{settings.max_error_rate:g}; most in {worst}: {tallies[worst]}; full list: {unusable}; "
            "correct the file, or move all bad rows to quarantine with --accept-failures"
        )


def _check_any_left(tallies: Mapping[str, _SourceTally], reasons: Counter[str]) -> None:
    """Raise StageFailed if no question is left, which can happen even if every source has usable rows."""
    if any(tally.kept for tally in tallies.values()):
        return
    counts_text = ", ".join(f"{reason} {count:,}" for reason, count in reasons.most_common())
    raise StageFailed(
        f"no question is left of {reasons.total():,} rows ({counts_text}); add questions, or check "
        f"questions.decontaminate"
    )


def _metrics(intake: _QuestionsRun, tallies: Mapping[str, _SourceTally], reasons: Counter[str]) -> dict[str, Any]:
    environments = intake.environments if len(intake.environments) > 1 else {}
    return {
        "rows_read": sum(tally.rows for tally in tallies.values()),
        "questions": sum(intake.splits.values()),
        "quarantined": reasons.total(),
        **{f"reason.{name}": count for name, count in sorted(reasons.items())},
        **{f"dataset.{name}": count for name, count in sorted(intake.datasets.items())},
        **{f"split.{name}": count for name, count in sorted(intake.splits.items())},
        **dict(sorted(intake.mixed.items())),
        **({"originals_left_out": intake.num_left_out} if intake.num_left_out else {}),
        **{f"{METRIC_PREFIX}{name}": count for name, count in sorted(environments.items())},
        "benchmark_rows_skipped": intake.benchmark_rows_skipped,
    }
