"""Collect what is known about a flow when its instances are estimated: results, and the number of units to make."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from treadle.agent.contract import DEFAULT_ENVIRONMENT
from treadle.core.errors import RunError
from treadle.core.runs.address import Address
from treadle.core.runs.bound_inputs import bind_inputs
from treadle.core.runs.execute import equal_result, fingerprint_of
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance, Rows
from treadle.datagen.pools.settings import PoolsSettings
from treadle.datagen.questions.sources import QuestionsSettings, SourceSettings
from treadle.environments.rollouts.settings import RolloutsSettings, selected_questions
from treadle.rl.selection.settings import SelectionSettings
from treadle.tasks.estimate.file_rows import rows_of
from treadle.tasks.estimate.preview import EMPTY_PREVIEW, Preview

DEFAULT_NUM_UNITS = 1_000
"""Number of questions or rows that an estimate assumes if the actual number is unknown."""


@dataclass(frozen=True, slots=True)
class EstimateContext:
    """A flow, its run so far, and the instances that are going to run."""

    instances: Sequence[Instance]
    run: Run | None
    """None if the run does not exist yet."""
    to_run: frozenset[str]
    """Addresses of the instances that are going to run."""
    force: bool
    preview: Preview = EMPTY_PREVIEW
    """Inputs of these instances that were made in advance, and how much of their work is finished."""

    def kept_record(self, producer: Address) -> StageRecord | None:
        """Return the result of an instance that will not run: its own, or an equal one of an earlier iteration."""
        if self.run is None or str(producer) in self.to_run:
            return None
        if (record := self.run.record(producer)) is not None:
            return record
        item = next((one for one in self.instances if one.address == producer), None)
        try:
            return equal_result(item, self.run) if item is not None else None
        except RunError:
            return None

    def resumed_fingerprint(self, item: Instance) -> str:
        """Return the fingerprint of the last attempt if this instance would resume it, else an empty string."""
        if self.run is None or self.force:
            return ""
        attempts = self.run.attempts(item.address)
        try:
            same = attempts and attempts[-1].fingerprint == fingerprint_of(item, bind_inputs(item, self.run))
        except RunError:
            return ""
        return attempts[-1].fingerprint if same else ""

    def tables(self, producers: Sequence[Address], kind: str) -> list[Rows] | None:
        """Return the tables that instances have made, or would make without cost; None if one is unknown."""
        found = []
        for producer in producers:
            table = self.preview.questions.get(str(producer)) if kind == "questions" else None
            if table is None and self.run is not None and (record := self.kept_record(producer)) is not None:
                table = self.run.rows(record.outputs[kind])
            if table is None:
                return None
            found.append(table)
        return found


@dataclass(frozen=True, slots=True)
class QuestionCount:
    """Number of questions to make trajectories of, the share of math questions, and where these figures are from."""

    number: int | None
    share_math: float
    source: str
    shares: Mapping[str, float]
    """Name of each environment -> share of the questions that belong to it."""


def questions_of(item: Instance, settings: PoolsSettings | RolloutsSettings, context: EstimateContext) -> QuestionCount:
    """Return the number of questions that the instance reads, else the configured maximum."""
    options: Any = settings.options
    producers = item.inputs["questions"]
    if (tables := context.tables(producers, "questions")) is not None:
        rows = [(row["domain"], row["environment"]) for row in _selected(tables, options)]
        share = sum(domain == "math" for domain, _ in rows) / len(rows) if rows else 0.0
        shares = _shares(Counter(name for _, name in rows))
        return QuestionCount(len(rows), share, f"from {', '.join(map(str, producers))}", shares)
    limits, shares = list[int](), expected_shares(context.instances)
    if options.max_questions is not None:
        limits.append(options.max_questions)
    if options.max_questions_per_dataset is not None and options.datasets:
        limits.append(options.max_questions_per_dataset * len(options.datasets))
    rows_at_most = _row_limits(item, context.instances)
    if limits and min(limits) <= min(rows_at_most, default=min(limits)):
        return QuestionCount(min(limits), 1.0, "the configured maximum: the questions do not exist yet", shares)
    if rows_at_most:
        return QuestionCount(min(rows_at_most), 1.0, "all rows of the sources: the questions do not exist yet", shares)
    unknown = f"the questions do not exist yet and have no maximum: this is for {DEFAULT_NUM_UNITS:,} of them"
    return QuestionCount(None, 1.0, unknown, shares)


def expected_shares(instances: Sequence[Instance]) -> dict[str, float]:
    """Return the share of questions by name of environment, in proportion to the limits of the sources.

    If a source has no limit, all sources count equally.
    """
    settings = [made.settings for made in instances if isinstance(made.settings, QuestionsSettings)]
    sources = [source for one in settings[:1] for source in one.sources]
    is_limited = all(source.limit is not None for source in sources)
    counts: Counter[str] = Counter()
    for source in sources:
        counts[source.environment] += source.limit if is_limited and source.limit is not None else 1
    return _shares(counts)


def _shares(counts: Counter[str]) -> dict[str, float]:
    """Return the share of each count in their sum; without counts, the default environment has a share of 1."""
    total = counts.total()
    return {name: count / total for name, count in counts.items()} if total else {DEFAULT_ENVIRONMENT: 1.0}


def _row_limits(item: Instance, instances: Sequence[Instance]) -> list[int]:
    """Return the maximum number of rows in the question sources: limits, or rows of files; empty if one is unknown."""
    makers = [made for made in instances if made.address in item.inputs["questions"]]
    rows = [_most_rows(source) for made in makers for source in getattr(made.settings, "sources", ())]
    known = [limit for limit in rows if limit is not None]
    return [sum(known)] if known and len(known) == len(rows) else []


def _most_rows(source: SourceSettings) -> int | None:
    if (counted := rows_of(source)) is not None and counted.is_complete:
        return counted.num_rows
    return source.limit


def _selected(tables: Sequence[Rows], options: Any) -> Any:
    names = ("datasets", "split", "max_questions", "max_questions_per_dataset")
    chosen = SimpleNamespace(**{name: getattr(options, name) for name in names})
    return selected_questions(chosen, tables, ("dataset", "split", "domain", "environment"))


def training_rows(item: Instance, context: EstimateContext) -> tuple[int, str]:
    """Return the number of rows of a training phase, and where that number is from."""
    (producer,) = item.inputs["rl_rows"]
    if (record := context.kept_record(producer)) is not None:
        num_rows = record.outputs["rl_rows"].num_rows
        return num_rows, f"{num_rows:,} rows in {producer}"
    selection = next((one.settings for one in context.instances if one.address == producer), None)
    most = selection.options.max_questions if isinstance(selection, SelectionSettings) else DEFAULT_NUM_UNITS
    return most, f"at most {most:,} rows: they are not selected yet"
