"""Open a run and load its tables: the part of `treadle.api` for notebooks and scripts.

Documented in docs/guides/files.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from treadle.core.errors import RunError
from treadle.core.runs.address import Address
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.store.json_columns import parsed_schema
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
from treadle.tasks.analysis.run_tables import (
    ASKED,
    asked_of,
    joined,
    kinds_of,
    known_table,
    records_with,
    scored_of,
    table_of,
)
from treadle.tasks.analysis.shown import RunTrajectory, run_html
from treadle.tasks.inspection.lineage import find_rollout

JUDGED = ("prediction", "correct", "score", "is_reward", "efficiency", "scorer", "parts", "error")
"""Columns of `scores` that are joined to rollouts; `error` becomes `score_error`."""
SCORE_ERROR = "score_error"
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
        loaded = _loaded("rollouts", columns, added=(*ASKED, *JUDGED, SCORE_ERROR), keys=("question_key", "model"))
        for record in records_with(self.run, "rollouts", iteration):
            table = _whole(self.run, record, "rollouts", loaded)
            table = joined(table, "question_key", asked_of(self.run, record), ASKED)
            table = joined(table, "rollout_key", self._judged(record), JUDGED, error=SCORE_ERROR)
            parts.append(table)
        return _selected(parts, "rollouts", self.run, model=model, columns=columns)

    def trajectories(self, *, model: str | None = None, iteration: int | None = None) -> RowTable:
        """Return one row per rollout with question, gold answers, prediction, verdict, calls by tool, tokens, seconds.

        The columns are those of `treadle export trajectories`; errors are as for `rollouts`.
        """
        from treadle.tasks.analysis.trajectories import SCHEMA, trajectory_batches

        batches = trajectory_batches(self.run, model=model, iteration=iteration)
        return RowTable(pa.Table.from_batches(list(batches), schema=SCHEMA))

    def pools(self, *, iteration: int | None = None, columns: Sequence[str] | None = None) -> RowTable:
        """Return the trajectories of pools, with their verdicts, joined with questions and gold answers."""
        parts = []
        loaded = _loaded("pools", columns, added=ASKED, keys=("question_key",))
        for record in records_with(self.run, "pools", iteration):
            table = _whole(self.run, record, "pools", loaded)
            parts.append(joined(table, "question_key", asked_of(self.run, record), ASKED))
        return _selected(parts, "pools", self.run, columns=columns)

    def table(self, kind: str, *, iteration: int | None = None, columns: Sequence[str] | None = None) -> RowTable:
        """Return all rows of a kind of table, with the instance that made each; see docs/reference/tables.md.

        Columns of JSON text with a fixed form are lists and structs. Columns that are hidden from models are loaded
        only by name. Raises RunError for an unknown table or column, or if the run has none.
        """
        if find_table(kind) is None:
            raise RunError(f"there is no table {kind!r}; this run has {', '.join(kinds_of(self.run)) or 'none'}")
        loaded = _loaded(kind, columns)
        parts = [_whole(self.run, record, kind, loaded) for record in records_with(self.run, kind, iteration)]
        return _selected(parts, kind, self.run, columns=columns)

    def report(self, *, iteration: int | None = None) -> RowTable:
        """Return the figures of the report: one row per model, data set and figure, with intervals.

        The column `seconds` has the mean wall time of the measured rollouts of the model on the data set; null for
        averages, and without measured times.
        """
        from treadle.tasks.summaries.report_seconds import report_seconds

        rows = self.table("summary", iteration=iteration).arrow
        means: dict[tuple[str, str, str], float] = {}
        for record in records_with(self.run, "summary", iteration):
            for (model, dataset), seconds in report_seconds(record, self.run).items():
                means[record.address, model, dataset] = math.fsum(seconds) / len(seconds)
        places = zip(*(rows[name].to_pylist() for name in (INSTANCE, "model", "dataset")), strict=True)
        values = [means.get(place) for place in places]
        return RowTable(rows.append_column("seconds", pa.array(values, pa.float64())))

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
        records = records_with(self.run, "rollouts", iteration)
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

    def _judged(self, record: StageRecord) -> pa.Table:
        """Return the verdicts on the rollouts of a result; a table without rows if they have no finished `scores`."""
        columns = ["rollout_key", *JUDGED]
        scored = scored_of(self.run, record)
        if scored is None:
            return parsed_schema(known_table("scores"), columns).empty_table()
        return table_of(self.run, scored, "scores", columns)


def _whole(run: Run, record: StageRecord, kind: str, columns: Sequence[str]) -> pa.Table:
    """Return these columns of all rows of a table, and the column `INSTANCE` with the address of the instance."""
    rows = table_of(run, record, kind, columns)
    return rows.append_column(INSTANCE, pa.array([record.address] * rows.num_rows, pa.string()))


def _loaded(
    kind: str, wanted: Sequence[str] | None, *, added: Sequence[str] = (), keys: Sequence[str] = ()
) -> list[str]:
    """Return the columns to load: the requested ones and keys; by default all but hidden ones and `TOKENS`.

    `added` are columns of other tables that are joined later. Raises RunError for a requested
    column that is neither in the table nor in `added`.
    """
    table = known_table(kind)
    usual = [name for name in table.visible if not (added and name == TOKENS)]
    if wanted is None:
        return usual
    if unknown := [name for name in wanted if name not in (*table.schema.names, *added, INSTANCE)]:
        names = dict.fromkeys((*usual, *added, INSTANCE))
        raise RunError(f"{kind} have no column {unknown[0]!r}; there are {', '.join(names)}")
    # Keys are always loaded: a batch without any column of this table would have no number of rows.
    return [name for name in table.schema.names if name in wanted or name in (*keys, *table.key)]


def _selected(
    parts: Sequence[pa.Table],
    kind: str,
    run: Run,
    *,
    model: str | None = None,
    columns: Sequence[str] | None = None,
) -> RowTable:
    """Return several tables as one, with the requested rows and columns; raise RunError for an unknown model."""
    import pyarrow.compute as pc

    rows = pa.concat_tables(parts)
    if model is not None:
        models = rows["model"].unique().to_pylist()
        if model not in models:
            raise RunError(f"run {run.run_id} has no {kind} of {model!r}; there are those of {', '.join(models)}")
        rows = rows.filter(pc.equal(rows["model"], model))
    if columns is not None:
        rows = rows.select(list(columns))
    return RowTable(rows)
