"""Keep the journal of a stage instance on this machine and upload it to an object store in sealed segments.

    <journal key>/<number>.journal      segments; number = token of the holder x 10,000,000 + n
    <journal key>/<token>.json          segments that this holder lists: its own and those that it found

A new holder starts with the segments on the newest list. Segments that an earlier holder uploads later are on no such
list and are ignored: `docs/behaviour/runs.md`. On a local root the journal is used without uploads.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from treadle.core.errors import RunError, StorageError
from treadle.core.journal.journal import Journal, count_finished
from treadle.core.journal.segments import is_intact, segments
from treadle.core.store.leases import Lease
from treadle.core.store.object_storage import ObjectStorage, RetryPolicy
from treadle.core.store.roots import Storage
from treadle.core.store.storage import make_folder, storage_errors

_log = logging.getLogger(__name__)

SEAL_INTERVAL_S = 5.0
_NUMBERS_PER_TOKEN = 10_000_000
_AT_ONCE = 8
_BRIEF_POLICY = RetryPolicy(connect_s=3.0, request_s=20.0, retries=1, retrying_s=5.0)
"""Retry policy of periodic uploads, which are repeated anyway, and of the last upload after a failed attempt."""


class _List(BaseModel):
    """Uploaded list of the segments that belong to a journal, written by the holder of its lease."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    segments: tuple[tuple[int, int], ...]
    """Numbers of the segments, as ranges from first to last."""
    num_finished: int
    machine: str


@contextlib.contextmanager
def open_journal(
    storage: Storage,
    key: str,
    lease: Lease,
    *,
    from_scratch: bool = False,
    growing: Sequence[str] = (),
) -> Iterator[Journal]:
    """Open the journal `key` during a block.

    `from_scratch` discards its records. `growing` are the keys of files that are uploaded with it, such as a log. At
    the end of the block everything has been uploaded. Raises StorageError if that fails, and RunError if a record is
    written after the lease was lost. Writing a record never waits for the endpoint.
    """
    directory = storage.directory(key)
    if not isinstance(storage, ObjectStorage):
        if from_scratch:
            storage.delete(key)
        with Journal(directory, guard=lease.guard) as journal:
            yield journal
        return
    copy = JournalUploader(storage, key, lease)
    copy.restore(from_scratch=from_scratch)
    try:
        with (
            Journal(directory, first_number=lease.token * _NUMBERS_PER_TOKEN + 1, guard=lease.guard) as journal,
            _Upload(copy, journal, growing),
        ):
            yield journal
    except RunError:
        # Writing a record cannot wait for the endpoint; this check can, and may name the new holder.
        lease.check()
        raise


def count_recorded(storage: Storage, key: str) -> int:
    """Return the number of owners, such as rollouts, that are finished in a journal.

    For a journal of another machine, this is the number at its last upload.
    """
    if not isinstance(storage, ObjectStorage):
        return count_finished(storage.directory(key))
    newest = _newest_list(storage, key, _sizes(storage, key))
    if newest is None:
        return 0
    return count_finished(storage.directory(key)) if newest[1].machine == storage.machine() else newest[1].num_finished


def fetch_journal(storage: Storage, key: str) -> Path:
    """Fetch the listed segments of a journal that no process writes any more; return their local folder.

    Raises StorageError if a segment is missing.
    """
    directory = storage.directory(key)
    if not isinstance(storage, ObjectStorage):
        return directory
    sizes = _sizes(storage, key)
    newest = _newest_list(storage, key, sizes)
    listed = _numbers(newest[1].segments) if newest else set()
    with storage_errors("open journal", directory):
        make_folder(directory)
        local = {number: path for number, path in segments(directory)}
        for number in local.keys() - listed:
            local[number].unlink()
        there = {_number_of(name): size for name, size in sizes.items() if name.endswith(".journal")}
        torn = _torn(local, {number: there[number] for number in listed & there.keys()})
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        keys = (f"{key}/{number:08d}.journal" for number in (listed - local.keys()) | torn)
        list(pool.map(storage.fetch, keys))
    return directory


def last_token(storage: Storage, key: str) -> int:
    """Return the largest token of the holders of a journal in an object store; 0 for none or a local root."""
    if not isinstance(storage, ObjectStorage):
        return 0
    return max(map(_token_of, _sizes(storage, key)), default=0)


def delete_journal(storage: Storage, key: str, token: int) -> None:
    """Delete the journal of a completed instance, except for files of holders later than `token`."""
    if not isinstance(storage, ObjectStorage):
        storage.delete(key)
        return
    for name in _sizes(storage, key):
        if _token_of(name) <= token:
            storage.delete(f"{key}/{name}")
    storage.discard(key)


class JournalUploader:
    """Manager of one journal's objects in the object store; only the holder of its lease uses it."""

    def __init__(self, storage: ObjectStorage, key: str, lease: Lease) -> None:
        self.storage, self._key, self._lease = storage, key, lease
        self._known: set[int] = set()
        """Numbers of the segments that are uploaded and listed."""

    def restore(self, *, from_scratch: bool) -> None:
        """Make the local directory hold exactly the valid segments, and upload the list of this lease holder."""
        sizes = _sizes(self.storage, self._key)
        newest = None if from_scratch else _newest_list(self.storage, self._key, sizes)
        listed = _numbers(newest[1].segments) if newest else set()
        there = {_number_of(name): size for name, size in sizes.items() if name.endswith(".journal")}
        directory = self.storage.directory(self._key)
        with storage_errors("open journal", directory):
            make_folder(directory)
            local = {number: path for number, path in segments(directory)}
            gone = listed - there.keys()
            if newest is not None and all(number in local and is_intact(local[number]) for number in gone):
                # Segments that their holder on this machine had not uploaded or listed when it was killed.
                tail = {number for number in local if number // _NUMBERS_PER_TOKEN == newest[0]} - listed
            else:
                if listed:
                    _log.warning("%s is missing segments; all work is repeated", self.storage.location(self._key))
                listed, tail, gone = set(), set(), set()
            for number in local.keys() - listed - tail:
                local[number].unlink()
            torn = _torn(local, {number: there[number] for number in (listed | tail) & there.keys()})
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(self.storage.fetch, map(self._segment_key, (listed - local.keys()) | torn)))
        self._known = listed - gone
        num_listed = newest[1].num_finished if newest and listed else 0
        self.send(tail | gone, count_finished(directory) if tail else num_listed)

    def send(self, numbers: Collection[int], num_finished: int) -> None:
        """Upload segments, then list them; raise StorageError if that fails, and RunError if the lease is lost."""
        self._lease.check()
        ordered = sorted(numbers)
        # Listed in batches, so that no part of a long backlog is uploaded twice.
        for start in range(0, max(len(ordered), 1), _AT_ONCE):
            some = ordered[start : start + _AT_ONCE]
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                list(pool.map(self.storage.keep, map(self._segment_key, some)))
            self._put_list(self._known | set(some), num_finished)
            self._known |= set(some)

    def _put_list(self, numbers: set[int], num_finished: int) -> None:
        content = _List(segments=tuple(_ranges(numbers)), num_finished=num_finished, machine=self.storage.machine())
        key, data = f"{self._key}/{self._lease.token:08d}.json", content.model_dump_json().encode()
        # Conditional, so that a delayed earlier put of ours cannot overwrite this one.
        while not self.storage.put_if(key, data, self.storage.get(key)):
            self._lease.check()

    def upload_new(self, journal: Journal) -> None:
        """Seal the new records and upload them."""
        sealed, num_finished = journal.seal()
        if new := sealed - self._known:
            self.send(new, num_finished)

    def with_short_timeouts(self) -> JournalUploader:
        """Return a copy of this object that uses short timeouts and few retries."""
        other = JournalUploader(self.storage.with_retry_policy(_BRIEF_POLICY), self._key, self._lease)
        other._known = self._known
        return other

    def _segment_key(self, number: int) -> str:
        return f"{self._key}/{number:08d}.journal"


class _Upload:
    """A background upload of new records, every few seconds and at the end of a block."""

    def __init__(self, copy: JournalUploader, journal: Journal, growing: Sequence[str]) -> None:
        self._copy, self._brief, self._journal = copy, copy.with_short_timeouts(), journal
        self._sizes = dict.fromkeys(growing, 0)
        self._stopped = threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="treadle-journal-upload", daemon=True)

    def __enter__(self) -> _Upload:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        if kind is None:
            self._copy.upload_new(self._journal)
            return
        try:
            self._brief.upload_new(self._journal)
        except (StorageError, RunError) as error:
            # The user sees the original error, not this one.
            _log.warning("the last records exist only on this machine: %s", error)

    def _run(self) -> None:
        while not self._stopped.wait(SEAL_INTERVAL_S):
            try:
                self._brief.upload_new(self._journal)
                self._send_growing()
                self._failing = False
            except RunError:
                continue  # The next record raises if the lease is lost; a late renewal lets a later round succeed.
            except Exception as error:  # noqa: BLE001 - without this thread, hours of work would exist only here
                if not self._failing:
                    _log.warning("records cannot be uploaded and stay on this machine for now: %s", error)
                self._failing = True

    def _send_growing(self) -> None:
        storage = self._brief.storage
        for key, sent in self._sizes.items():
            path = storage.directory(key)
            size = path.stat().st_size if path.exists() else 0
            # A long log is not uploaded again for each line.
            if size > sent + sent // 10:
                storage.keep(key)
                self._sizes[key] = size


def _sizes(storage: ObjectStorage, key: str) -> dict[str, int]:
    """Return the names and sizes in bytes of the segments and lists of a journal, ignoring other files."""
    found = {name.removeprefix(f"{key}/"): size for name, size in storage.sizes(key).items()}
    return {name: size for name, size in found.items() if re.fullmatch(r"\d{8,}\.(journal|json)", name)}


def _torn(local: Mapping[int, Path], sizes: Mapping[int, int]) -> set[int]:
    """Return the segments that differ from the uploaded ones (`sizes`, in bytes), for example after a power loss."""
    torn = {
        number
        for number in local.keys() & sizes.keys()
        if local[number].stat().st_size != sizes[number] or not is_intact(local[number])
    }
    if torn:
        _log.warning("%d segments of the journal are damaged on this machine; they are fetched again", len(torn))
    return torn


def _newest_list(storage: ObjectStorage, key: str, names: Iterable[str]) -> tuple[int, _List] | None:
    tokens = [_token_of(name) for name in names if name.endswith(".json")]
    if not tokens:
        return None
    content = storage.get(f"{key}/{max(tokens):08d}.json")
    if content is None:
        return None
    try:
        return max(tokens), _List.model_validate_json(content)
    except ValidationError:
        raise StorageError(
            f"{storage.location(key)}/{max(tokens):08d}.json is damaged; delete it to repeat the work that it lists"
        ) from None


def _number_of(name: str) -> int:
    return int(name.partition(".")[0])


def _token_of(name: str) -> int:
    number = _number_of(name)
    return number if name.endswith(".json") else number // _NUMBERS_PER_TOKEN


def _numbers(ranges: Iterable[tuple[int, int]]) -> set[int]:
    return {number for first, last in ranges for number in range(first, last + 1)}


def _ranges(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    # Consecutive numbers have the same difference from their positions.
    for _, group in itertools.groupby(enumerate(sorted(numbers)), key=lambda item: item[1] - item[0]):
        row = [number for _, number in group]
        yield row[0], row[-1]
