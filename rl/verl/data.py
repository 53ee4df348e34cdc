"""Write parquet files in verl's schema, from `rl_rows` or from an engine's rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from treadle.agent.contract import Task
from treadle.environments.mixture import Environments, find_environment
from treadle.environments.opening import shown_messages
from treadle.rl.verl.rows import VERL_COLUMNS, VERL_SCHEMA, verl_row

_BATCH = 1_000
_OWN = ("domain", "format", "scorer", "environment")
ENGINE_SCHEMA = pa.schema(
    [
        pa.field(field.name, pa.struct([*field.type, *(pa.field(name, pa.string()) for name in _OWN)]))
        if field.name == "extra_info"
        else field
        for field in VERL_SCHEMA
    ]
)
"""Schema of the rows for Treadle's agent loop in verl: `extra_info` has additional fields of the question."""


def write_verl(batches: Iterable[pa.RecordBatch], path: Path, schema: pa.Schema = VERL_SCHEMA) -> int:
    """Write the columns `VERL_COLUMNS` of the batches to one file for verl; return the number of rows."""
    num_rows = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as file:
        for batch in batches:
            columns = [batch[name] for name in VERL_COLUMNS]
            file.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
            num_rows += batch.num_rows
    return num_rows


def write_verl_rows(
    source: Path,
    target: Path,
    environments: Environments,
    *,
    split: str = "train",
    phase: int = 0,
    only_first: bool = False,
) -> int:
    """Convert rows of `TRAINING_SCHEMA` into rows for Treadle's agent loop in verl (`ENGINE_SCHEMA`).

    `split` is `train` or `valid`; `only_first` converts one row only. The file is written atomically. Returns the
    number of rows written.
    """
    batches = pq.ParquetFile(source).iter_batches(1 if only_first else _BATCH, use_threads=False)
    rows = _Rows(environments, split, phase)
    return _write(map(rows.converted, itertools.islice(batches, 1) if only_first else batches), target)


def write_verl_steps(
    source: Path, target: Path, environments: Environments, steps: Iterable[Sequence[int]], *, phase: int = 0
) -> int:
    """Write training rows like `write_verl_rows`, in the order of `steps`; a step has the indices of its source rows.

    A row that several steps use is written for each of them. Returns the number of rows written.
    """
    table, rows = pq.read_table(source, use_threads=False), _Rows(environments, "train", phase)
    batches = (pa.RecordBatch.from_pylist(table.take(step).to_pylist(), table.schema) for step in steps)
    return _write(map(rows.converted, batches), target)


def _write(batches: Iterable[pa.RecordBatch], target: Path) -> int:
    unfinished = target.with_name(target.name + ".tmp")
    target.parent.mkdir(parents=True, exist_ok=True)
    num_rows = write_verl(batches, unfinished, ENGINE_SCHEMA)
    unfinished.rename(target)
    return num_rows


class _Rows:
    """Converter of rows, which it numbers."""

    def __init__(self, environments: Environments, split: str, phase: int) -> None:
        self._environments = environments
        self._split = split
        self._phase = phase
        self._num_rows = 0

    def converted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of `ENGINE_SCHEMA`."""
        made = [self._row(row, self._num_rows + at) for at, row in enumerate(batch.to_pylist())]
        self._num_rows += len(made)
        return pa.RecordBatch.from_pylist(made, ENGINE_SCHEMA)

    def _row(self, row: dict[str, Any], index: int) -> dict[str, Any]:
        task = Task.from_row(row)
        made = verl_row(
            row,
            shown_messages(find_environment(self._environments, task.environment), task),
            index=index,
            split=self._split,
            phase=self._phase,
            score_tool=row["score_tool"],
            score_corr=row["score_corr"],
            rank=row["rank"],
        )
        return made | {"extra_info": made["extra_info"] | {name: row.get(name) for name in _OWN}}
