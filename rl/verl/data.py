"""Write parquet files in verl's schema, from `rl_rows` or from an engine's rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from treadle.agent.contract import Task
from treadle.environments.opening import shown_messages
from treadle.environments.settings import EnvironmentSettings
from treadle.rl.verl.rows import VERL_COLUMNS, VERL_SCHEMA, verl_row

_BATCH = 1_000
_OWN = ("domain", "format")
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
    environment: EnvironmentSettings,
    *,
    split: str = "train",
    phase: int = 0,
    only_first: bool = False,
) -> int:
    """Convert rows of `TRAINING_SCHEMA` into rows for Treadle's agent loop in verl (`ENGINE_SCHEMA`).

    `split` is `train` or `valid`; `only_first` converts one row only. The file is written atomically. Returns the
    number of rows written.
    """
    unfinished = target.with_name(target.name + ".tmp")
    target.parent.mkdir(parents=True, exist_ok=True)
    num_rows = write_verl(_verl_batches(source, environment, split, phase, only_first), unfinished, ENGINE_SCHEMA)
    unfinished.rename(target)
    return num_rows


def _verl_batches(
    source: Path, environment: EnvironmentSettings, split: str, phase: int, only_first: bool
) -> Iterator[pa.RecordBatch]:
    index = 0
    batches = pq.ParquetFile(source).iter_batches(1 if only_first else _BATCH)
    for batch in itertools.islice(batches, 1) if only_first else batches:
        made = [_row(row, index + at, environment, split, phase) for at, row in enumerate(batch.to_pylist())]
        yield pa.RecordBatch.from_pylist(made, ENGINE_SCHEMA)
        index += len(made)


def _row(row: dict[str, Any], index: int, environment: EnvironmentSettings, split: str, phase: int) -> dict[str, Any]:
    made = verl_row(
        row,
        shown_messages(environment, Task.from_row(row)),
        index=index,
        split=split,
        phase=phase,
        score_tool=row["score_tool"],
        score_corr=row["score_corr"],
        rank=row["rank"],
    )
    return made | {"extra_info": made["extra_info"] | {name: row.get(name) for name in _OWN}}
