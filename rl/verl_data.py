"""Rows of a training as verl reads them: its parquet schema, with the messages that an agent is asked with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from treadle.agent.config import EnvironmentSettings
from treadle.agent.environment import Question, opening_messages
from treadle.rl.verl_rows import VERL_SCHEMA, verl_row

_BATCH = 1_000


def write_verl_rows(
    source: Path,
    target: Path,
    environment: EnvironmentSettings,
    *,
    split: str = "train",
    phase: int = 0,
    most: int | None = None,
) -> int:
    """Turn rows of `treadle.rl.verl_rows.TRAINING_SCHEMA` into rows of `VERL_SCHEMA`, in the same order.

    `split` is `train` or `valid`; `most` bounds their number. The file is there whole or not at all. Returns how many
    were written.
    """
    unfinished = target.with_name(target.name + ".tmp")
    num_rows = 0
    target.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(unfinished, VERL_SCHEMA, compression="zstd") as file:
        for rows in _batches(source, most):
            made = [_row(row, num_rows + at, environment, split, phase) for at, row in enumerate(rows)]
            file.write_batch(pa.RecordBatch.from_pylist(made, VERL_SCHEMA))
            num_rows += len(made)
    unfinished.rename(target)
    return num_rows


def _batches(source: Path, most: int | None) -> Iterator[list[dict[str, Any]]]:
    left = most
    for batch in pq.ParquetFile(source).iter_batches(_BATCH):
        rows = batch.to_pylist()[:left]
        if left is not None:
            left -= len(rows)
        if rows:
            yield rows


def _row(row: dict[str, Any], index: int, environment: EnvironmentSettings, split: str, phase: int) -> dict[str, Any]:
    return verl_row(
        row,
        opening_messages(environment, Question.from_row(row)),
        index=index,
        split=split,
        phase=phase,
        score_tool=row["score_tool"],
        score_corr=row["score_corr"],
        rank=row["rank"],
    )
