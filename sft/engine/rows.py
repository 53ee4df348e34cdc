"""Save rows as a data set of the engine's own `datasets` package, so that the engine can read it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

_ROWS_PER_BATCH = 256


def save_rows(parquet: Path, folder: Path) -> int:
    """Convert `input_ids` and `labels` of a parquet file to a folder for `tokenized_path`; return the number of rows.

    Rows are streamed, so memory does not grow with their number. The folder is written atomically.
    """
    from datasets import Dataset, Features, Sequence, Value
    from datasets.arrow_writer import ArrowWriter

    features = Features(
        {
            "input_ids": Sequence(Value("int32")),
            "attention_mask": Sequence(Value("int8")),
            "labels": Sequence(Value("int32")),
        }
    )
    arrow, unfinished = folder.with_name(folder.name + ".arrow"), folder.with_name(folder.name + ".tmp")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(unfinished, ignore_errors=True)
    with pq.ParquetFile(parquet) as file, ArrowWriter(path=str(arrow), features=features) as writer:
        for batch in file.iter_batches(_ROWS_PER_BATCH, columns=["input_ids", "labels"], use_threads=False):
            writer.write_table(_with_mask(batch))
        num_rows, _ = writer.finalize()
    Dataset.from_file(str(arrow)).save_to_disk(str(unfinished))
    arrow.unlink()
    unfinished.rename(folder)
    return int(num_rows)


def _with_mask(batch: pa.RecordBatch) -> pa.Table:
    ids = batch.column("input_ids")
    ones = pa.array([1], pa.int8()).take(pa.nulls(len(ids.flatten()), pa.int64()).fill_null(0))
    offsets = pa.compute.subtract(ids.offsets, ids.offsets[0])
    mask = pa.ListArray.from_arrays(offsets, ones)
    return pa.table([ids, mask, batch.column("labels")], names=["input_ids", "attention_mask", "labels"])
