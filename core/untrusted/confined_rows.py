"""Rows of files that Treadle did not write, read in a process of their own with a limit of memory.

A file of a few kB can make its reader allocate gigabytes, or end the process. Here that process is a child; rows come
back in frames that are checked (`core/untrusted/row_frames.py`). Files of the run store are read directly, by their
digests.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from treadle.core.parent_watch import FROM_OUTSIDE
from treadle.core.untrusted.sanitize import one_line

if TYPE_CHECKING:
    import pyarrow as pa

MEMORY_LIMIT_BYTES = 2 * 1024**3
"""Address space of the child, of which libraries take some 0.3 GiB."""
MAX_UNPACKED_BYTES = 1024**3
"""What the values of a file may take in Python if the caller keeps them."""
STREAMED_BYTES = 8 * MAX_UNPACKED_BYTES
"""What they may take in all if the caller keeps one batch at a time: a bound on time. Harmless files that repeat
themselves unpack to many times their size."""
_MAX_GROWTH = 200
"""Values of a larger file may take so many times its size."""
_SILENCE_S = 300.0
"""Without a frame in this time the child is ended; the machine may be busy, and a row group large."""
_READ_BYTES = 1 << 20
_PARQUET = "treadle.core.untrusted.parquet_worker"


class UnreadableInput(Exception):
    """What cannot be read, in one line without its name."""


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """A row whose values cannot be had, with a reason code as in `core.inputs.InputRow`."""

    reason: str
    detail: str
    source: bytes


def read_parquet(
    file: IO[bytes], *, columns: Sequence[str] | None = None, max_unpacked_bytes: int = STREAMED_BYTES
) -> Iterator[pa.RecordBatch | UnreadableRow]:
    """Stream the rows of an open parquet file, which has a descriptor, in order; `columns` that it lacks are left out.

    The child that reads has no files, network or keys. See `read_rows_of` for what comes and is raised.
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

    `num_bytes`: size of what it reads. `max_unpacked_bytes`: what all values may take in Python, unless so many times
    that size is more. `variables`: names of further variables of the environment that it gets. Values are plain:
    dictionaries and extension types come as what they stand for. A batch takes 64 MiB in Python at most; a row that
    takes more is unreadable. Raises UnreadableInput.
    """
    import pyarrow as pa

    from treadle.core.untrusted import row_frames

    left = max(max_unpacked_bytes, _MAX_GROWTH * num_bytes)
    schema: pa.Schema | None = None
    with _child(module, job, stdin, variables) as child:
        while (frame := child.frame())[0] != row_frames.END:
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
            except (pa.ArrowException, ValueError, KeyError, TypeError) as error:
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


class _Child:
    """The process that reads, as far as its frames go."""

    def __init__(self, process: subprocess.Popen[bytes], memory_bytes: int) -> None:
        self._process = process
        self._limit = f"{memory_bytes / 1024**3:g} GiB"
        assert process.stdout is not None
        self._output = process.stdout.fileno()
        self._waiting = select.poll()
        self._waiting.register(self._output, select.POLLIN)
        # The usual 64 KiB make both wait for each other. A user who has many pipes may not have larger ones.
        with suppress(OSError):
            fcntl.fcntl(self._output, fcntl.F_SETPIPE_SZ, _READ_BYTES)

    def frame(self) -> tuple[bytes, bytearray]:
        """Return the kind and content of the next frame, the end included; raises UnreadableInput."""
        from treadle.core.untrusted import row_frames

        kind, num_bytes = row_frames.HEAD.unpack(self._exactly(row_frames.HEAD.size))
        if num_bytes > row_frames.MAX_FRAME_BYTES:
            raise UnreadableInput("the isolated process that decodes the input sent invalid data")
        content = self._exactly(num_bytes)
        if kind == row_frames.PROBLEM:
            said = one_line(content.decode("utf-8", "replace"))
            if said == "memory":
                said = f"reading it takes more memory than {self._limit}; rewrite it with smaller row groups"
            raise UnreadableInput(said)
        return kind, content

    def _exactly(self, num_bytes: int) -> bytearray:
        content, place = bytearray(num_bytes), 0
        view = memoryview(content)
        end = time.monotonic() + _SILENCE_S
        while place < num_bytes:
            if not self._waiting.poll(max(0.0, end - time.monotonic()) * 1000):
                raise UnreadableInput(f"the reader process sent nothing for {_SILENCE_S:g} seconds")
            if not (count := os.readv(self._output, [view[place : place + _READ_BYTES]])):
                raise UnreadableInput(self._how_it_ended())
            place += count
        return content

    def _how_it_ended(self) -> str:
        code = self._process.wait()
        if -code in FROM_OUTSIDE:
            return "the reader process was killed; the machine may be out of memory"
        return f"the reader process failed with code {code}; the file is damaged or needs over {self._limit} of memory"


_TOO_MANY = "its values expand to too much memory for a file of its size; if you trust it, convert it to JSON Lines"


@contextmanager
def _child(module: str, job: Mapping[str, Any], stdin: IO[bytes] | None, variables: Sequence[str]) -> Iterator[_Child]:
    # Its own environment: a file that takes it over gets no keys. One heap, because each reserves address space.
    environment = {name: os.environ[name] for name in ("PATH", *variables) if name in os.environ}
    for name in ("PYTHONPATH", "LD_LIBRARY_PATH"):
        if given := os.environ.get(name):
            # It starts in another folder.
            environment[name] = os.pathsep.join(map(os.path.abspath, given.split(os.pathsep)))
    environment |= {"MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, json.dumps(job)],
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise UnreadableInput(f"the reader process did not start: {error}") from error
    try:
        yield _Child(process, job["memory_bytes"])
    finally:
        process.kill()
        process.communicate()
