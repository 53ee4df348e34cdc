"""Write record batches as parquet files that every library reads as one table, holding one batch in memory."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa

from treadle.core.store.parquet import DATA_FOLDER

PART_ROWS = 100_000
"""Rows after which a new file begins."""


def write_parts(batches: Iterable[pa.RecordBatch], schema: pa.Schema, folder: Path) -> int:
    """Write `data/part-00000.parquet` and so on into a folder, a row group per batch; return the number of rows.

    Without rows, one file has the schema.
    """
    import pyarrow.parquet as pq

    (folder / DATA_FOLDER).mkdir()
    num_rows = num_parts = 0
    writer: Any = None
    with ExitStack() as stack:
        for batch in batches:
            if writer is None or num_rows >= num_parts * PART_ROWS:
                stack.close()
                path = folder / DATA_FOLDER / f"part-{num_parts:05d}.parquet"
                writer = stack.enter_context(pq.ParquetWriter(path, schema, compression="zstd"))
                num_parts += 1
            writer.write_batch(batch)
            num_rows += batch.num_rows
    if writer is None:
        pq.write_table(schema.empty_table(), folder / DATA_FOLDER / "part-00000.parquet")
    return num_rows
