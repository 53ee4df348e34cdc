"""Read rows of files that Treadle did not write, in a separate process with limited memory.

A file of a few kB can make its reader allocate gigabytes, or end the process. Here that process is a child; rows come
back in frames that are checked (`core/untrusted/row_frames.py`). Files of the run store are read directly, by their
digests.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from treadle.core.untrusted.sanitize import one_line
from treadle.core.untrusted.worker_process import WorkerEnded, WorkerNotStarted, WorkerProcess

if TYPE_CHECKING:
    import pyarrow as pa

MEMORY_LIMIT_BYTES = 2 * 1024**3
"""Address space of the child, of which libraries take some 0.3 GiB."""
MAX_UNPACKED_BYTES = 1024**3
"""Maximum bytes of a file's values as Python objects, if the caller keeps all of them."""
STREAMED_BYTES = 8 * MAX_UNPACKED_BYTES
"""Maximum bytes of a file's values in total, if the caller keeps one batch at a time; this bounds the time. Harmless
files with repeated values unpack to many times their size."""
_MAX_GROWTH = 200
"""Multiple of a file's size that its values may take, if that is above the maximum."""
_SILENCE_S = 300.0
"""Seconds without a frame after which the child is killed; the machine may be busy, and a row group large."""
_PARQUET = "treadle.core.untrusted.parquet_worker"


class UnreadableInput(Exception):
    """Input that cannot be read; the message is one line without the input's name."""


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """A row whose values cannot be read, with a reason code as in `core.inputs.InputRow`."""

    reason: str
    detail: str
    source: bytes


def read_parquet(
    file: IO[bytes], *, columns: Sequence[str] | None = None, max_unpacked_bytes: int = STREAMED_BYTES
) -> Iterator[pa.RecordBatch | UnreadableRow]:
    """Stream the rows of an open parquet file, which has a descriptor, in order; `columns` that it lacks are left out.

    The child that reads has no files, network or keys. For the values and the errors see `read_rows_of`.
    """
    job = {"memory_bytes": MEMORY_LIMIT_BYTES, "columns": columns}
    size = os.fstat(file.fileno()).st_size
    return read_rows_of(_PARQUET, job, stdin=file, num_bytes=size, max_unpacked_bytes=max_unpacked_bytes)


def read_rows_of(
    module: str,
    job: Mapping[str, Any],
    *,
    stdin: IO[bytes] | None,
    num_bytes: int,
    variables: Sequence[str] = (),
    max_unpacked_bytes: int = STREAMED_BYTES,
) -> Iterator[pa.RecordBatch | UnreadableRow]:
    """Stream the rows that a module sends when it is run with a job of JSON, which has `memory_bytes`.

    `num_bytes`: size of the input. `max_unpacked_bytes`: maximum bytes of all values as Python objects, or
    `_MAX_GROWTH` times `num_bytes` if that is more. `variables`: names of further environment variables that the child
    gets. Values are plain: dictionaries and extension types come as the values that they represent. A batch takes 64
    MiB in Python at most; a row that takes more is unreadable. Raises UnreadableInput.
    """
    import pyarrow as pa

    from treadle.core.untrusted import row_frames

    left = max(max_unpacked_bytes, _MAX_GROWTH * num_bytes)
    schema: pa.Schema | None = None
    with closing(_start(module, job, stdin, variables)) as worker:
        while (frame := _next_frame(worker, job["memory_bytes"]))[0] != row_frames.END:
            kind, content = frame
            # Frames without rows cost as well, or a child could keep its parent busy for ever.
            left -= row_frames.FRAME_COST + len(content)
            try:
                if kind == row_frames.SCHEMA:
                    schema = pa.ipc.read_schema(pa.py_buffer(content))
                    row_frames.check_schema(schema)
                elif kind == row_frames.ROW:
                    yield _unreadable_row(content)
                elif kind == row_frames.BATCH and schema is not None:
                    batch = _batch(content, schema)
                    left -= max(0, row_frames.cost(batch) - len(content))
                    if left >= 0:
                        yield batch
                else:
                    raise ValueError("unexpected frame")
            except (pa.ArrowException, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise UnreadableInput(
                    f"the isolated process that decodes the input sent invalid data: {one_line(str(error))}"
                ) from None
            if left < 0:
                raise UnreadableInput(_TOO_MANY)


def _batch(content: bytearray, schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    from treadle.core.untrusted import row_frames

    batch = pa.ipc.read_record_batch(pa.py_buffer(content), schema)
    batch.validate(full=True)
    if row_frames.cost(batch) > row_frames.MAX_BATCH_COST:
        raise ValueError("too large a batch")
    return batch


def _unreadable_row(content: bytearray) -> UnreadableRow:
    told = {name: str(value) for name, value in json.loads(content).items()}
    return UnreadableRow(one_line(told["reason"]), one_line(told["detail"]), told["raw"].encode("latin-1", "replace"))


def _next_frame(worker: WorkerProcess, memory_bytes: int) -> tuple[bytes, bytearray]:
    """Return the kind and content of the next frame, the end included; raises UnreadableInput."""
    from treadle.core.untrusted import row_frames

    limit = f"{memory_bytes / 1024**3:g} GiB"
    try:
        kind, content = worker.receive(_SILENCE_S, row_frames.MAX_FRAME_BYTES)
    except TimeoutError:
        raise UnreadableInput(f"the reader process sent nothing for {_SILENCE_S:g} seconds") from None
    except ValueError:
        raise UnreadableInput("the isolated process that decodes the input sent invalid data") from None
    except WorkerEnded as ended:
        if ended.is_kill:
            raise UnreadableInput("the reader process was killed; the machine may be out of memory") from None
        raise UnreadableInput(
            f"the reader process failed with code {ended.code}; the file is damaged or needs over {limit} of memory"
        ) from None
    if kind == row_frames.PROBLEM:
        said = one_line(content.decode("utf-8", "replace"))
        if said == "memory":
            said = f"reading it takes more memory than {limit}; rewrite it with smaller row groups"
        raise UnreadableInput(said)
    return kind, content


_TOO_MANY = "its values expand to too much memory for a file of its size; if you trust it, convert it to JSON Lines"


def _start(module: str, job: Mapping[str, Any], stdin: IO[bytes] | None, variables: Sequence[str]) -> WorkerProcess:
    settings = {name: os.environ[name] for name in variables if name in os.environ}
    # One heap, because each reserves address space.
    settings |= {"MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
    source = subprocess.DEVNULL if stdin is None else stdin
    try:
        worker = WorkerProcess(module, json.dumps(job), stdin=source, variables=settings)
    except WorkerNotStarted as error:
        raise UnreadableInput(f"the reader process did not start: {error}") from error
    worker.enlarge_pipe()  # The usual 64 KiB make both wait for each other.
    return worker
