"""Open a run and load its tables: the part of `treadle.api` for notebooks and scripts.

Documented in docs/guides/files.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from treadle.core.errors import RunError
from treadle.core.runs.address import Address
from treadle.core.runs.records import StageRecord
from treadle.core.runs.reused import own_results
from treadle.core.runs.run import Run
from treadle.core.tables import find_table
from treadle.report.summary import label_prefixes
from treadle.tasks.analysis.action_space import (
    NUM_QUESTIONS,
    PER_QUESTION,
    ActionSpace,
    RolloutTable,
    action_space,
    configured_encoder,
    encoder_of,
)
from treadle.tasks.analysis.row_table import RowTable
from treadle.tasks.analysis.shown import RunTrajectory, run_html
from treadle.tasks.inspection.lineage import find_rollout

ASKED = ("question", "choices", "answers", "split")
"""Columns of `questions` that are joined to trajectories; `answers` are the accepted gold answers."""
JUDGED = ("prediction", "correct", "score", "is_reward", "efficiency", "scorer", "parts", "error")
"""Columns of `scores` that are joined to rollouts; `error` becomes `score_error`."""
INSTANCE = "instance"
"""Column with the address of the instance that made a row."""
TOKENS = "samples"
"""Column with token ids, which is loaded only by name: it is larger than all others together."""


class RunResults:
    """The finished results of a run, read from its artifacts; nothing is written or computed again."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def __repr__(self) -> str:
        return f"<run {self.run.run_id}: {', '.join(self.instances) or 'nothing finished'}>"

    def _repr_html_(self) -> str:
        rows = [
            (
                record.address,
                ", ".join(f"{kind} ({ref.num_rows:,})" for kind, ref in record.outputs.items()),
                record.finished_at,
            )
            for record in self.run.records()
        ]
        return run_html(self.run.run_id, self.run.info.created_at, rows)

    @property
    def instances(self) -> list[str]:
        """Addresses of the finished stage instances, such as `1/rollouts@base`."""
        return [record.address for record in self.run.records()]

    def metrics(self, instance: str) -> dict[str, Any]:
        """Return the metrics of a finished instance; raise RunError if it has not finished."""
        record = self.run.record(Address.parse(instance))
        if record is None:
            done = ", ".join(self.instances) or "nothing"
            raise RunError(f"{instance} of run {self.run.run_id} has not finished; finished: {done}")
        return dict(record.metrics)

    def questions(self, *, iteration: int | None = None, columns: Sequence[str] | None = None) -> RowTable:
        """Return the questions with their accepted answers."""
        return self.table("questions", iteration=iteration, columns=columns)

    def rollouts(
        self,
        *,
        model: str | None = None,
        iteration: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> RowTable:
        """Return the rollouts, joined with their questions, gold answers and verdicts.

        Verdicts are null for rollouts that no finished `scores` covers. `model` selects the rollouts of one model,
        `iteration` those of one iteration; by default each rollout is listed once. Raises RunError for an unknown
        model or column, or if no rollouts have finished.
        """
        parts = []
        for record in self._records("rollouts", iteration):
            table = _whole(self.run, record, "rollouts", hidden=(TOKENS,), wanted=columns)
            table = _joined(table, "question_key", self._asked(record), ASKED)
            scored = self.run.record(replace(Address.parse(record.address), stage="scores"))
            table = _joined(table, "rollout_key", self._judged(scored), JUDGED, rename={"error": "score_error"})
            parts.append(table)
        return _selected(parts, "rollouts", self.run, model=model, columns=columns)

    def trajectories(self, *, model: str | None = None, iteration: int | None = None) -> RowTable:
        """Return one row per rollout with question, gold answers, prediction, verdict, calls by tool, tokens, seconds.

        The columns are those of `treadle export trajectories`; errors are as for `rollouts`.
        """
        from treadle.tasks.analysis.trajectories import READ, with_measures

        rows = self.rollouts(model=model, iteration=iteration, columns=READ).to_arrow()
        return RowTable(with_measures(rows, self.run))

    def pools(self, *, iteration: int | None = None, columns: Sequence[str] | None = None) -> RowTable:
        """Return the trajectories of pools, with their verdicts, joined with questions and gold answers."""
        parts = []
        for record in self._records("pools", iteration):
            table = _whole(self.run, record, "pools", hidden=(TOKENS,), wanted=columns)
            parts.append(_joined(table, "question_key", self._asked(record), ASKED))
        return _selected(parts, "pools", self.run, columns=columns)

    def table(self, kind: str, *, iteration: int | None = None, columns: Sequence[str] | None = None) -> RowTable:
        """Return all rows of a kind of table as stored, with the instance that made each; see docs/reference/tables.md.

        Columns that are hidden from models are loaded only by name. Raises RunError for an unknown table or column, or
        if the run has none.
        """
        if find_table(kind) is None:
            raise RunError(f"there is no table {kind!r}; this run has {', '.join(self._kinds()) or 'none'}")
        parts = [_whole(self.run, record, kind, wanted=columns) for record in self._records(kind, iteration)]
        return _selected(parts, kind, self.run, columns=columns)

    def report(self, *, iteration: int | None = None) -> RowTable:
        """Return the figures of the report: one row per model, data set and figure, with intervals."""
        return self.table("summary", iteration=iteration)

    def trajectory(self, key: str) -> RunTrajectory:
        """Return a trajectory with its question, verdict, segments and calls, by its key or a unique prefix.

        `2/<key>` selects that of the second iteration. A notebook shows it as text. Raises DataError.
        """
        return RunTrajectory.of(find_rollout(self.run, key))

    def action_space(
        self,
        *,
        models: Sequence[str] | None = None,
        iteration: int | None = None,
        num_questions: int = NUM_QUESTIONS,
        per_question: int = PER_QUESTION,
        encoder: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> ActionSpace:
        """Return trajectories as points in a plane by t-SNE, one colour per model: `.svg`, and `.points` as a table.

        `encoder` has the keys of `environment.search.encoder`; by default it is that of the run's vector search, else
        texts are compared by their letters. Equal arguments give equal points on one machine. Raises ConfigError,
        RunError, or DataError if there are too few trajectories.
        """
        records = self._records("rollouts", iteration)
        prefixes = label_prefixes([(Address.parse(one.address), one.outputs["rollouts"].digest) for one in records])
        return action_space(
            [
                RolloutTable(self.run.rows(record.outputs["rollouts"]), prefix)
                for record, prefix in zip(records, prefixes, strict=True)
                if prefix is not None
            ],
            models=models,
            num_questions=num_questions,
            per_question=per_question,
            encoder=configured_encoder(self.run) if encoder is None else encoder_of(encoder),
            seed=seed,
        )

    def _kinds(self) -> list[str]:
        return sorted({kind for record in self.run.records() for kind in record.outputs})

    def _records(self, kind: str, iteration: int | None) -> list[StageRecord]:
        """Return the results that hold a kind of table, each of equal ones once."""
        records = self.run.records()
        chosen = own_results(records) if iteration is None else records
        found = [
            record
            for record in chosen
            if kind in record.outputs and iteration in (None, Address.parse(record.address).iteration)
        ]
        if not found:
            where = "" if iteration is None else f" in iteration {iteration}"
            raise RunError(
                f"run {self.run.run_id} has no finished {kind}{where}; it has {', '.join(self._kinds()) or 'nothing'}"
            )
        return found

    def _asked(self, record: StageRecord) -> pa.Table:
        """Return the questions that a result was made from."""
        refs = [ref.artifact for ref in record.inputs.get("questions", ())]
        columns = ["question_key", *ASKED]
        schema = _schema("questions", columns)
        return pa.Table.from_batches(
            [batch for ref in refs for batch in self.run.rows(ref).batches(columns)], schema=schema
        )

    def _judged(self, scored: StageRecord | None) -> pa.Table:
        columns = ["rollout_key", *JUDGED]
        schema = _schema("scores", columns)
        batches: Iterable[pa.RecordBatch] = ()
        if scored is not None and "scores" in scored.outputs:
            batches = self.run.rows(scored.outputs["scores"]).batches(columns)
        return pa.Table.from_batches(list(batches), schema=schema)


def _schema(kind: str, columns: Sequence[str]) -> pa.Schema:
    table = find_table(kind)
    assert table is not None, "shipped tables are known"
    return pa.schema([table.schema.field(name) for name in columns])


def _whole(
    run: Run, record: StageRecord, kind: str, *, hidden: Sequence[str] = (), wanted: Sequence[str] | None = None
) -> pa.Table:
    """Return all rows of a table with the instance that made them, without `hidden` columns that are not `wanted`."""
    reader, table = run.rows(record.outputs[kind]), find_table(kind)
    assert table is not None, "the reader knows the table"
    kept = [
        name for name in table.schema.names if name in (wanted or ()) or (name in table.visible and name not in hidden)
    ]
    rows = pa.Table.from_batches(list(reader.batches(kept)), schema=_schema(kind, kept))
    return rows.append_column(INSTANCE, pa.array([record.address] * rows.num_rows, pa.string()))


def _joined(
    rows: pa.Table, key: str, others: pa.Table, columns: Sequence[str], rename: dict[str, str] | None = None
) -> pa.Table:
    """Return rows with columns of the other row of the same key, null without one; Arrow's own join takes no lists."""
    places = {value: place for place, value in enumerate(others[key].to_pylist())}
    indices = pa.array([places.get(value) for value in rows[key].to_pylist()], pa.int64())
    for name in columns:
        title = (rename or {}).get(name, name)
        field = others.schema.field(name).with_name(title).with_nullable(True)
        found = others[name].take(indices)
        rows = rows.append_column(field, found) if title not in rows.column_names else rows
    return rows


def _selected(
    parts: Sequence[pa.Table],
    kind: str,
    run: Run,
    *,
    model: str | None = None,
    columns: Sequence[str] | None = None,
) -> RowTable:
    """Return the parts as one table with the wanted rows and columns; raise RunError for unknown ones."""
    import pyarrow.compute as pc

    rows = pa.concat_tables(parts)
    if model is not None:
        models = rows["model"].unique().to_pylist()
        if model not in models:
            raise RunError(f"run {run.run_id} has no {kind} of {model!r}; there are those of {', '.join(models)}")
        rows = rows.filter(pc.equal(rows["model"], model))
    if columns is not None:
        if unknown := [name for name in columns if name not in rows.column_names]:
            raise RunError(f"{kind} have no column {unknown[0]!r}; there are {', '.join(rows.column_names)}")
        rows = rows.select(list(columns))
    return RowTable(rows)
