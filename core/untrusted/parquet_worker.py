"""Read one parquet file, given as standard input: `python -P -m treadle.core.untrusted.parquet_worker`.

A footer of some bytes can make its reader allocate gigabytes, hang or crash. So this process limits its memory, gives
up all but computing (`core/untrusted/process_confinement.py`), and only then looks at the file. Rows go out in frames
(`core/untrusted/row_frames.py`).
"""

from __future__ import annotations

import io
import json
import os
import sys
from typing import Any, BinaryIO

from treadle.core.untrusted.process_confinement import confine, drop_file_access, limit_memory
from treadle.core.untrusted.worker_frames import open_frames

_READ_BYTES = 1 << 20
_BATCH_BYTES = 4 * 2**20
_MIN_ROWS, _MAX_ROWS = 16, 1024
"""Rows per batch. More would not be faster, and texts in dictionaries take more memory than the metadata states."""


def main(arguments: list[str]) -> int:
    """Read the file; the argument is JSON: `memory_bytes`, `columns` (a list, or null for all)."""
    job = json.loads(arguments[0])
    frames, file = open_frames(), os.fdopen(0, "rb")
    limit_memory(job["memory_bytes"])
    from treadle.core.untrusted import row_frames, row_sending

    _warm_up()
    drop_file_access()
    confine()  # Without the filter the limits and the parent's checks still hold.
    try:
        _send_rows(file, frames, job["columns"])
    except BrokenPipeError:
        os._exit(0)  # the parent needs no more
    except Exception as error:  # noqa: BLE001 - whatever it is, the file is the cause
        row_sending.send(frames, row_frames.PROBLEM, row_sending.problem(error))
    # Exit without clean-up, whose order a malicious file could influence.
    os._exit(0)


def _warm_up() -> None:
    """Load everything that reading needs: without access to files, nothing can be imported and no thread started."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from treadle.core.untrusted.row_sending import bad_text

    pa.set_memory_pool(pa.system_memory_pool())
    table = pa.table({"a": ["x", None], "b": [[1], []], "c": [{"d": 1.0}, None]})
    for codec in ("none", "snappy", "gzip", "zstd", "lz4", "brotli"):
        sample = io.BytesIO()
        pq.write_table(table, sample, compression=codec)
        _send_rows(sample, io.BytesIO(), ["a", "b", "c"])
    json.dumps({"detail": "x"})
    bad_text(pa.array([b"\xff"]).view(pa.string()))


def _send_rows(file: BinaryIO, frames: BinaryIO, columns: list[str] | None) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from treadle.core.untrusted import row_frames, row_sending

    # Without a buffer the reader holds whole column chunks.
    parquet = pq.ParquetFile(file, pre_buffer=False, buffer_size=_READ_BYTES)
    # If the file has no column of these names, all are sent, so that the caller can report what is missing.
    names = [name for name in parquet.schema_arrow.names if name in (columns or ())] or None
    fields = [field for field in parquet.schema_arrow if names is None or field.name in names]
    schema = row_sending.send_schema(frames, pa.schema(fields))
    num_rows = 0
    for batch in parquet.iter_batches(_batch_rows(parquet.metadata), columns=names, use_threads=False):
        row_sending.send_rows(frames, batch, schema)
        num_rows += batch.num_rows
    if num_rows != parquet.metadata.num_rows:
        raise ValueError(f"its footer says {parquet.metadata.num_rows:,} rows, and it has {num_rows:,}")
    row_sending.send(frames, row_frames.END, b"")


def _batch_rows(metadata: Any) -> int:
    """Return how many rows make a batch of a few MiB, if all row groups are like the first and its metadata is true."""
    first = metadata.row_group(0) if metadata.num_row_groups else None
    if first is None or first.num_rows < 1 or first.total_byte_size < 1:
        return _MIN_ROWS
    return int(min(max(_BATCH_BYTES * first.num_rows // first.total_byte_size, _MIN_ROWS), _MAX_ROWS))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
