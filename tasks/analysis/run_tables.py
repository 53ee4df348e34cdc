"""Find the tables of a run that hold one kind of row, and read them with columns of JSON text as lists and structs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from treadle.core.errors import RunError
from treadle.core.runs.address import Address
from treadle.core.runs.records import StageRecord
from treadle.core.runs.reused import own_results
from treadle.core.runs.run import Run
from treadle.core.store.json_columns import parsed_batches, parsed_schema
from treadle.core.tables import Table, find_table

ASKED = ("question", "choices", "answers", "split")
"""Columns of `questions` that are joined to trajectories; `answers` are the accepted gold answers."""


def kinds_of(run: Run) -> list[str]:
    """Return the kinds of tables that a run has."""
    return sorted({kind for record in run.records() for kind in record.outputs})


def records_with(run: Run, kind: str, iteration: int | None) -> list[StageRecord]:
    """Return the results with a table of this kind; raise RunError if there is none.

    Without `iteration`, a result that later iterations reused is returned once.
    """
    records = run.records()
    chosen = own_results(records) if iteration is None else records
    found = [
        record
        for record in chosen
        if kind in record.outputs and iteration in (None, Address.parse(record.address).iteration)
    ]
    if not found:
        where = "" if iteration is None else f" in iteration {iteration}"
        raise RunError(
            f"run {run.run_id} has no finished {kind}{where}; it has {', '.join(kinds_of(run)) or 'nothing'}"
        )
    return found


def known_table(kind: str) -> Table:
    """Return the definition of a table that a run has; callers ensure that the kind is known."""
    table = find_table(kind)
    assert table is not None, "tables of finished results are known"
    return table


def batches_of(run: Run, record: StageRecord, kind: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table of a result, with columns of JSON text as lists and structs, one row group in memory.

    Raises ArtifactError for damaged files, and for JSON text that does not have its declared form.
    """
    reader = run.rows(record.outputs[kind])
    return parsed_batches(reader.batches(columns), known_table(kind), columns)


def table_of(run: Run, record: StageRecord, kind: str, columns: Sequence[str]) -> pa.Table:
    """Return the rows of `batches_of` as one table in memory."""
    return pa.Table.from_batches(
        list(batches_of(run, record, kind, columns)), schema=parsed_schema(known_table(kind), columns)
    )


def asked_of(run: Run, record: StageRecord) -> pa.Table:
    """Return the questions that a result was made from, with the columns `ASKED`."""
    columns = ["question_key", *ASKED]
    refs = [ref.artifact for ref in record.inputs.get("questions", ())]
    return pa.Table.from_batches(
        [batch for ref in refs for batch in run.rows(ref).batches(columns)],
        schema=parsed_schema(known_table("questions"), columns),
    )


def scored_of(run: Run, record: StageRecord) -> StageRecord | None:
    """Return the result of the `scores` instance for the rollouts of `record`; None if it has not finished."""
    scored = run.record(replace(Address.parse(record.address), stage="scores"))
    return scored if scored is not None and "scores" in scored.outputs else None


def joined(rows: pa.Table, key: str, others: pa.Table, columns: Sequence[str], **titles: str) -> pa.Table:
    """Join `columns` of `others` to `rows` by the column `key`, with nulls for rows without a match.

    Arrow's own join does not accept list columns. `titles`: column -> its name in the result. Columns that the rows
    already have are not replaced.
    """
    places = {value: place for place, value in enumerate(others[key].to_pylist())}
    indices = pa.array([places.get(value) for value in rows[key].to_pylist()], pa.int64())
    for name in columns:
        title = titles.get(name, name)
        if title not in rows.column_names:
            field = others.schema.field(name).with_name(title).with_nullable(True)
            rows = rows.append_column(field, others[name].take(indices))
    return rows
