"""Read the stored tables of rollouts and scores for diagnoses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.store.artifacts import ArtifactRef
from treadle.core.store.text_arrays import one_of


def counted_columns(run: Run, ref: ArtifactRef, columns: Sequence[str]) -> pa.Table | None:
    """Return some columns of all rows, without hashing the files; None for a table without rows.

    Texts are read, and files hashed, only if these columns show a problem.
    """
    tables = [table for _, table in run.rows(ref).row_groups(columns) if table.num_rows]
    return pa.concat_tables(tables) if tables else None


def groups_of(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Yield groups of rows: all rows, with an empty name, and for several data sets the rows of each, with its name."""
    yield "", table
    names = pc.unique(table["dataset"]).to_pylist()
    for name in names if len(names) > 1 else ():
        yield name, table.filter(one_of((name,))(table["dataset"]))


def questions_of(
    record: StageRecord, run: Run, keys: Sequence[str], columns: tuple[str, ...]
) -> dict[str, dict[str, Any]]:
    """Return question key -> columns of its row, for those of `keys` that the record's inputs contain."""
    found: dict[str, dict[str, Any]] = {}
    for ref in record.inputs.get("questions", ()):
        reader = run.rows(ref.artifact)
        for batch in reader.matching("question_key", one_of(keys), ("question_key", *columns)):
            found |= {row["question_key"]: row for row in batch.to_pylist()}
    return found
