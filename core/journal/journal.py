"""Record the finished work of a running stage instance durably, so that a crash loses only what was in flight.

A journal is a directory of append-only segments. Each record belongs to an *owner* (a rollout key) and is either one of
its finished *units* (an LLM answer, a tool outcome) or, with an empty unit name, its final row.
`docs/decisions/0002-journal.md` explains why there is one journal and not a file per rollout or a database.
`docs/behaviour/runs.md` has the format and the guarantees.

Memory holds only locations: one per finished owner, and one per unit of each unfinished owner.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from treadle.core.errors import StorageError
from treadle.core.journal.segments import (
    HEADER_BYTES,
    MAX_NAME_BYTES,
    record_bytes,
    salt_of,
    scan,
    segment_header,
    segment_path,
    segments,
    value_of,
)
from treadle.core.store.storage import force_to_disk, make_folder, storage_errors, write_all

_log = logging.getLogger(__name__)

MAX_READERS = 128

SEGMENT_BYTES = 64 * 1024 * 1024
SYNC_INTERVAL_S = 0.1

# A record's location is packed into one integer: for 200,000 finished owners it takes a third of an object's memory.
_LENGTH_BITS = 34
_OFFSET_BITS = 40


def _place(segment: int, offset: int, length: int) -> int:
    """Pack a segment number, an offset, and a length in bytes that includes the record's header."""
    return (segment << _OFFSET_BITS | offset) << _LENGTH_BITS | length


def _parts(place: int) -> tuple[int, int, int]:
    """Unpack the segment number, offset and length of a location."""
    at = place >> _LENGTH_BITS
    return at >> _OFFSET_BITS, at & ((1 << _OFFSET_BITS) - 1), place & ((1 << _LENGTH_BITS) - 1)


class Journal:
    """Durable records by owner and unit; implements `core.runs.stage.JournalView`.

    `append` and `finish` pass the record to the kernel before they return, so it survives SIGKILL. A thread forces the
    data to disk every 100 ms, which bounds what a power loss costs. The first record of an owner and unit wins. Only
    one process at a time may have a journal open, which the lease of the stage instance ensures. The methods may be
    called from several threads.
    """

    def __init__(
        self,
        directory: Path,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        sync_interval_s: float = SYNC_INTERVAL_S,
        first_number: int = 1,
        max_readers: int = MAX_READERS,
        guard: Callable[[], None] | None = None,
    ) -> None:
        """Open or create a journal and index its records; raise StorageError if that fails.

        `first_number` is the smallest number of a new segment, `max_readers` the number of segments kept open for
        reading. `guard` is called before each record is written and may raise.
        """
        self._directory = directory
        self._first_number = first_number
        self._max_readers = max_readers
        self._guard = guard
        self._segment_bytes = segment_bytes
        self._lock = threading.Lock()
        self._finished: dict[str, int] = {}
        self._units: dict[str, dict[str, int]] = {}
        self._readers: dict[int, tuple[int, int]] = {}
        self._writer: int | None = None
        self._segment = 0
        self._size = 0
        self._salt = 0
        self._closed = False
        self.num_damaged = 0
        """Number of damaged spans found on opening; the work they recorded is pending again."""
        with storage_errors("open journal", directory):
            make_folder(directory)
            self._load()
        self._sync = _SyncThread(sync_interval_s)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def num_finished(self) -> int:
        """Number of owners, such as rollouts, whose final row is recorded."""
        return len(self._finished)

    def finished_owners(self) -> Iterator[str]:
        """Iterate over the owners whose final row is recorded, in the order of finishing."""
        return iter(self._finished)

    def is_finished(self, owner: str) -> bool:
        """Return whether the final row of this owner is recorded."""
        return owner in self._finished

    def get(self, owner: str, unit: str) -> bytes | None:
        """Return the recorded value of a unit of an owner; None if the unit is pending, or its owner is finished."""
        place = self._units.get(owner, {}).get(unit)
        return None if place is None else self._read(place)

    def units(self, owner: str) -> list[str]:
        """Return the names of an owner's recorded units; none if the owner is finished."""
        return list(self._units.get(owner, ()))

    def finished(self, owner: str) -> bytes:
        """Read the final row of an owner (a rollout key) from disk; raise KeyError if it is not finished."""
        return self._read(self._finished[owner])

    def append(self, owner: str, unit: str, value: bytes) -> None:
        """Record a finished unit, unless the unit or its owner's final row is already recorded.

        Raises StorageError if writing fails; earlier records stay readable.
        """
        if not unit:
            raise ValueError("a unit needs a name")
        with self._lock:
            if owner not in self._finished and unit not in self._units.get(owner, {}):
                place = self._write(owner, unit, value)
                self._units.setdefault(owner, {})[unit] = place

    def finish(self, owner: str, value: bytes) -> None:
        """Record the final row of an owner and drop its units; the first final row wins."""
        with self._lock:
            if owner not in self._finished:
                self._finished[owner] = self._write(owner, "", value)
                self._units.pop(owner, None)

    def flush(self) -> None:
        """Force all records to disk; raise StorageError if that fails."""
        with self._lock, storage_errors("force to disk", self._directory):
            if self._writer is not None:
                os.fsync(self._writer)

    def seal(self) -> tuple[set[int], int]:
        """End the current segment, so that no segment changes any more.

        Returns the numbers of all segments, and the number of owners whose final rows they hold. Both are read before
        another thread can write a record.
        """
        with self._lock, storage_errors("list", self._directory):
            if self._writer is not None:
                self._sync.retire(self._writer)
                self._writer = None
            return {number for number, _ in segments(self._directory)}, self.num_finished

    def close(self) -> None:
        """Force all records to disk and close; a second call does nothing."""
        with self._lock, storage_errors("force to disk", self._directory):
            if self._closed:
                return
            self._closed = True
            writer, self._writer = self._writer, None
            if writer is not None:
                self._sync.retire(writer)
            while self._readers:
                os.close(self._readers.popitem()[1][0])
            self._sync.stop()

    def _write(self, owner: str, unit: str, value: bytes) -> int:
        if self._closed:
            raise ValueError("the journal is closed")
        owner_bytes, unit_bytes = owner.encode(), unit.encode()
        if not owner_bytes or len(owner_bytes) > MAX_NAME_BYTES or len(unit_bytes) > MAX_NAME_BYTES:
            raise ValueError(f"owner and unit names take 1 to {MAX_NAME_BYTES} bytes")
        if self._guard is not None:
            self._guard()
        with storage_errors("write journal", self._directory):
            self._sync.check()
            if self._writer is None or self._size >= self._segment_bytes:
                self._open_segment()
            assert self._writer is not None
            record = record_bytes(owner_bytes, unit_bytes, value, self._salt)
            self._append_record(record)
            self._sync.wake(self._writer)
        place = _place(self._segment, self._size, len(record))
        self._size += len(record)
        return place

    def _append_record(self, record: bytes) -> None:
        """Write a whole record; on failure remove the part that was written, so that the next record can follow."""
        assert self._writer is not None
        try:
            write_all(self._writer, record)
        except OSError:
            try:
                os.ftruncate(self._writer, self._size)
            except OSError:
                # The torn record must stay the last one of its segment.
                self._sync.retire(self._writer)
                self._writer = None
            raise

    def _open_segment(self) -> None:
        if self._writer is not None:
            self._sync.retire(self._writer)
            self._writer = None
        number = max(self._segment + 1, self._first_number)
        salt = int.from_bytes(os.urandom(4), "little")
        path = segment_path(self._directory, number)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            write_all(descriptor, segment_header(salt))
            force_to_disk(self._directory)
        except OSError:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        self._writer, self._segment, self._salt, self._size = descriptor, number, salt, HEADER_BYTES

    def _read(self, place: int) -> bytes:
        segment, offset, length = _parts(place)
        path = segment_path(self._directory, segment)
        with self._lock, storage_errors("read journal", path):
            if segment not in self._readers:
                if len(self._readers) == self._max_readers:
                    os.close(self._readers.pop(next(iter(self._readers)))[0])
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                self._readers[segment] = descriptor, salt_of(os.pread(descriptor, HEADER_BYTES, 0), path)
            descriptor, salt = self._readers[segment]
            record = os.pread(descriptor, length, offset)
        value = value_of(record, salt)
        if value is None:
            raise StorageError(f"journal segment {path} was damaged at byte {offset} while in use; check the disk")
        return value

    def _load(self) -> None:
        finished, units = self._finished, self._units
        for number, path in segments(self._directory):
            self._segment = number

            def keep(owner: str, unit: str, offset: int, length: int, number: int = number) -> None:
                if owner in finished:
                    return
                if unit:
                    units.setdefault(owner, {}).setdefault(unit, _place(number, offset, length))
                else:
                    finished[owner] = _place(number, offset, length)
                    units.pop(owner, None)

            self.num_damaged += scan(path, keep)
        if self.num_damaged:
            words = "journal %s: %d damaged spans skipped; their work is repeated"
            _log.warning(words, self._directory, self.num_damaged)


def count_finished(directory: Path) -> int:
    """Return the number of owners, such as rollouts, that are finished in a journal; 0 if there is no journal.

    Another process may be writing the journal.
    """
    return len(finished_owners(directory))


def finished_owners(directory: Path) -> set[str]:
    """Return the owners, such as rollout keys, that are finished in a journal; none if there is no journal.

    Another process may be writing the journal.
    """
    return {owner for _, places in _final_places(directory) for owner in places}


def finished_rows(directory: Path, max_owners: int) -> list[bytes]:
    """Return the final rows of up to `max_owners` owners in a journal that another process may be writing.

    Returns none if there is no journal.
    """
    rows: dict[str, bytes] = {}
    for path, places in _final_places(directory):
        if len(rows) >= max_owners:
            break
        # An instance that completes meanwhile deletes its journal.
        with storage_errors("read journal", path), contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            salt = salt_of(file.read(HEADER_BYTES), path) if places else 0
            for owner, (offset, length) in list(places.items())[: max_owners - len(rows)]:
                file.seek(offset)
                if (value := value_of(file.read(length), salt)) is not None:
                    rows[owner] = value
    return list(rows.values())


def _final_places(directory: Path) -> Iterator[tuple[Path, dict[str, tuple[int, int]]]]:
    """Yield each segment with the offset and length of the final row of each owner in it."""
    with storage_errors("read journal", directory):
        for _, path in segments(directory):
            places: dict[str, tuple[int, int]] = {}

            def keep(owner: str, unit: str, offset: int, length: int, places: dict = places) -> None:  # type: ignore[type-arg]
                if not unit:
                    places[owner] = offset, length

            with contextlib.suppress(FileNotFoundError):
                scan(path, keep)
            yield path, places


class _SyncThread:
    """A thread that forces written data to disk in batches, and sleeps while nothing is written."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._written = threading.Event()
        self._stopped = threading.Event()
        self._current: int | None = None
        self._retired: list[int] = []
        self._failure: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="treadle-journal-sync", daemon=True)
        self._thread.start()

    def wake(self, descriptor: int) -> None:
        """Wake the thread to force this segment (an open file descriptor) to disk."""
        self._current = descriptor
        if not self._written.is_set():
            self._written.set()

    def retire(self, descriptor: int) -> None:
        """Force a segment to disk one last time and close it, in the background."""
        with self._lock:
            self._retired.append(descriptor)
            self._current = None
        self._written.set()

    def check(self) -> None:
        """Raise the failure of an earlier sync: the disk lost data that it had accepted."""
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Finish the last sync and end the thread; raise the failure of a sync."""
        self._stopped.set()
        self._written.set()
        self._thread.join()
        self.check()

    def _run(self) -> None:
        while True:
            self._written.wait()
            self._stopped.wait(self._interval_s)
            self._written.clear()
            # Read after the event is cleared: `stop` sets both, and no other event would come.
            stopping = self._stopped.is_set()
            self._sync_once()
            if stopping:
                return

    def _sync_once(self) -> None:
        with self._lock:
            descriptors, self._retired = self._retired, []
            if self._current is not None:
                try:
                    # Duplicated, because the loop below closes it, while the writer continues to use the original.
                    descriptors.append(os.dup(self._current))
                except OSError as error:
                    self._failure = error
        for descriptor in descriptors:
            try:
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)  # Network file systems may report failed writes only here.
            except OSError as error:
                self._failure = error
