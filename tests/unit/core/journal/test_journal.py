"""Records of the journal survive any end of its process; damaged ones are pending again."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import resource
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sweep import examples

from treadle.core.errors import StorageError
from treadle.core.journal.journal import Journal, count_finished

OWNERS = st.sampled_from(["a", "b", "größe", "d" * 40])
UNITS = st.sampled_from(["llm-0", "tool-0", "llm-1"])
VALUES = st.binary(max_size=300)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), OWNERS, UNITS, VALUES),
        st.tuples(st.just("finish"), OWNERS, st.just(""), VALUES),
        st.tuples(st.just("reopen"), st.just(""), st.just(""), st.just(b"")),
    ),
    max_size=30,
)


class Model:
    """The expected content of a journal, in memory."""

    def __init__(self) -> None:
        self.units: dict[tuple[str, str], bytes] = {}
        self.rows: dict[str, bytes] = {}

    def do(self, what: str, owner: str, unit: str, value: bytes) -> bool:
        """Apply one step; whether it puts a record into the journal."""
        if what == "reopen" or owner in self.rows or (owner, unit) in self.units:
            return False
        if what == "append":
            self.units[owner, unit] = value
        else:
            self.rows[owner] = value
            self.units = {key: kept for key, kept in self.units.items() if key[0] != owner}
        return True


def agree(journal: Journal, model: Model) -> None:
    assert {owner: journal.finished(owner) for owner in journal.finished_owners()} == model.rows
    for owner in ("a", "b", "größe", "d" * 40):
        assert journal.is_finished(owner) == (owner in model.rows)
        for unit in ("llm-0", "tool-0", "llm-1"):
            assert journal.get(owner, unit) == model.units.get((owner, unit))


def do(journal: Journal, what: str, owner: str, unit: str, value: bytes) -> None:
    if what == "append":
        journal.append(owner, unit, value)
    elif what == "finish":
        journal.finish(owner, value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.journal"))


@settings(deadline=None, max_examples=examples(60))
@given(steps=STEPS)
def test_any_history_reads_back_the_first_value_of_each_key(steps: list[tuple[str, str, str, bytes]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, model = Path(name), Model()
        # Tiny segments, so that histories cross them.
        journal = Journal(folder, segment_bytes=400, sync_interval_s=0)
        for step in steps:
            if step[0] == "reopen":
                journal.close()
                journal = Journal(folder, segment_bytes=400, sync_interval_s=0)
            do(journal, *step)
            model.do(*step)
            agree(journal, model)
        journal.close()
        with Journal(folder) as journal:
            agree(journal, model)
            assert journal.num_damaged == 0
        assert count_finished(folder) == len(model.rows)


@settings(deadline=None, max_examples=examples(60))
@given(steps=STEPS.filter(bool), cut=st.floats(0, 1, exclude_max=True))
def test_truncated_last_record_stays_pending_and_all_others_are_kept(
    steps: list[tuple[str, str, str, bytes]], cut: float
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, before, after = Path(name), Model(), Model()
        with Journal(folder) as journal:
            for step in steps:
                size = segments(folder)[0].stat().st_size if segments(folder) else 0
                do(journal, *step)
                if after.do(*step):
                    start, last = size or 12, step
        if not after.units and not after.rows:
            return
        for step in steps:
            if step is last:
                break
            before.do(*step)
        (segment,) = segments(folder)
        length = segment.stat().st_size - start
        os.truncate(segment, start + int(cut * length))
        with Journal(folder) as journal:
            agree(journal, before)
            assert journal.num_damaged == 0
            do(journal, *last)
            before.do(*last)
            agree(journal, before)
        with Journal(folder) as journal:
            agree(journal, before)


@settings(deadline=None, max_examples=examples(80))
@given(position=st.integers(12, 12 + 5 * 45 - 1), flip=st.integers(1, 255))
def test_damaged_byte_costs_one_record(position: int, flip: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Journal(folder) as journal:
            for index in range(5):
                journal.append("o", f"unit-{index}", bytes([index]) * 22)
        (segment,) = segments(folder)
        content = bytearray(segment.read_bytes())
        assert len(content) == 12 + 5 * 45
        content[position] ^= flip
        segment.write_bytes(content)
        with Journal(folder) as journal:
            kept = [journal.get("o", f"unit-{index}") is not None for index in range(5)]
            damaged = (position - 12) // 45
            assert kept == [index != damaged for index in range(5)]
            # If the last record's length or marker is hit, it looks like a truncated one.
            assert journal.num_damaged == 1 or damaged == 4


RECORDS = [
    ("a", "llm-0", b"first"),
    ("b", "llm-0", b""),
    ("größe", "", b"row"),
    ("a", "tool-0", b"x" * 9),
    ("a", "", b"r"),
]
"""Owner, unit and value of the records of a small journal; without a unit it is a final row."""


def write_records(folder: Path) -> tuple[bytes, list[int]]:
    """Return a journal with these records: its content, and where each of them begins and the last one ends."""
    ends = [12]
    with Journal(folder) as journal:
        for owner, unit, value in RECORDS:
            do(journal, "append" if unit else "finish", owner, unit, value)
            ends.append(segments(folder)[0].stat().st_size)
    return segments(folder)[0].read_bytes(), ends


def model_of(records: list[tuple[str, str, bytes]]) -> Model:
    model = Model()
    for owner, unit, value in records:
        model.do("append" if unit else "finish", owner, unit, value)
    return model


def check_recovery(folder: Path, content: bytes, kept: list[tuple[str, str, bytes]], *, damaged: set[int]) -> None:
    """Check that a journal with this content has these records, accepts the others again, and then has all of them."""
    (folder / "00000001.journal").write_bytes(content)
    with Journal(folder) as journal:
        agree(journal, model_of(kept))
        assert journal.num_damaged in damaged
        for owner, unit, value in RECORDS:
            do(journal, "append" if unit else "finish", owner, unit, value)
        rows = {owner: value for owner, unit, value in RECORDS if not unit}
        assert {owner: journal.finished(owner) for owner in journal.finished_owners()} == rows
    with Journal(folder) as journal:
        assert {owner: journal.finished(owner) for owner in journal.finished_owners()} == rows
    for path in segments(folder)[1:]:
        path.unlink()


def test_cut_at_any_byte_costs_only_the_records_it_cuts(folder: Path) -> None:
    content, ends = write_records(folder)
    for size in range(ends[-4], len(content)):
        num_whole = sum(end <= size for end in ends[1:])
        check_recovery(folder, content[:size], RECORDS[:num_whole], damaged={0})


def test_flipped_bit_costs_only_its_record(folder: Path) -> None:
    content, ends = write_records(folder)
    for index, (start, end) in enumerate(itertools.pairwise(ends)):
        kept = RECORDS[:index] + RECORDS[index + 1 :]
        for position in range(start, end):
            flipped = bytearray(content)
            flipped[position] ^= 1 << position % 8
            # A record whose marker or lengths are hit at the very end looks like one that was cut off.
            check_recovery(folder, bytes(flipped), kept, damaged={1} if end < len(content) else {0, 1})


def test_flipped_bit_in_a_segment_header_loses_the_segment_or_is_refused(folder: Path) -> None:
    content, _ = write_records(folder)
    for position in range(12):
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 8
        (folder / "00000001.journal").write_bytes(flipped)
        try:
            with Journal(folder) as journal:
                agree(journal, Model())
        except StorageError as error:
            assert "is not a journal segment" in str(error) or "this Treadle reads version 1" in str(error)


def test_damage_is_reported_in_one_warning(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Journal(folder) as journal:
        for index in range(3):
            journal.finish(f"o{index}", b"x" * 100)
    (segment,) = segments(folder)
    content = bytearray(segment.read_bytes())
    content[60] ^= 1
    segment.write_bytes(content)
    with caplog.at_level(logging.WARNING), Journal(folder) as journal:
        assert list(journal.finished_owners()) == ["o1", "o2"]
    assert [record.getMessage() for record in caplog.records] == [
        f"journal {folder}: 1 damaged spans skipped; their work is repeated"
    ]


def test_damaged_final_row_keeps_the_units(folder: Path) -> None:
    with Journal(folder) as journal:
        journal.append("o", "llm-0", b"answer")
        journal.finish("o", b"row")
    (segment,) = segments(folder)
    content = bytearray(segment.read_bytes())
    content[-1] ^= 1
    segment.write_bytes(content)
    with Journal(folder) as journal:
        assert not journal.is_finished("o")
        assert journal.get("o", "llm-0") == b"answer"
        assert journal.num_damaged == 1


def test_record_inside_a_value_is_never_parsed_as_one(folder: Path, scratch: Path) -> None:
    """Model text could spell out a record; torn open, its value must not become one."""
    with Journal(scratch) as other:
        other.finish("forged", b"row")
    (segment,) = segments(scratch)
    forged = segment.read_bytes()[12:]
    with Journal(folder) as journal:
        journal.append("o", "llm-0", forged * 3)
        journal.append("o", "llm-1", b"answer")
    (segment,) = segments(folder)
    content = bytearray(segment.read_bytes())
    content[20] ^= 1
    segment.write_bytes(content)
    with Journal(folder) as journal:
        assert not journal.is_finished("forged")
        assert journal.get("o", "llm-1") == b"answer"


@contextlib.contextmanager
def files_limited_to(num_bytes: int) -> Iterator[None]:
    """Make the kernel write what fits and refuse the rest, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


def test_refused_write_is_reported_and_loses_nothing_stored(folder: Path) -> None:
    with Journal(folder) as journal:
        journal.append("o", "llm-0", b"kept")
        size = segments(folder)[0].stat().st_size
        with (
            files_limited_to(size + 100),
            pytest.raises(
                StorageError, match=f"cannot write journal {folder}: .* larger than allowed: raise the limit"
            ),
        ):
            journal.append("o", "llm-1", b"x" * 300)
        assert segments(folder)[0].stat().st_size == size
        assert (journal.get("o", "llm-0"), journal.get("o", "llm-1")) == (b"kept", None)
        journal.append("o", "llm-1", b"second try")
    with Journal(folder) as journal:
        assert (journal.get("o", "llm-0"), journal.get("o", "llm-1")) == (b"kept", b"second try")
        assert journal.num_damaged == 0


@pytest.mark.parametrize("failing", ["fsync", "close"])
def test_failed_sync_is_reported_at_the_next_record(
    folder: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """A network file system may report a failed write only when the file is closed."""
    original = getattr(os, failing)

    def fail(descriptor: int) -> None:
        original(descriptor)
        if threading.current_thread() is journal._sync._thread:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    journal = Journal(folder, sync_interval_s=0)
    journal.append("o", "llm-0", b"")
    monkeypatch.setattr(os, failing, fail)
    journal.append("o", "llm-1", b"")
    with pytest.raises(StorageError, match="the disk reports a read or write failure"):
        journal.close()


def test_sync_without_a_free_file_descriptor_is_reported_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = threading.Event()

    def fail(descriptor: int) -> int:
        tried.set()
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "dup", fail)
    journal = Journal(folder, sync_interval_s=0)
    journal.append("o", "llm-0", b"")
    assert tried.wait(30)
    with pytest.raises(StorageError, match="too many open files"):
        journal.close()


def test_sync_ends_if_it_is_stopped_right_after_it_looked(folder: Path) -> None:
    class StoppedOnceSeen(threading.Event):
        def is_set(self) -> bool:
            found = super().is_set()
            if not found:  # as `stop` does in the thread that closes the journal
                self.set()
                sync._written.set()
            return found

    with Journal(folder, sync_interval_s=0.001) as journal:
        sync = journal._sync
        sync._stopped = StoppedOnceSeen()
        journal.append("o", "llm-0", b"1")
        sync._thread.join(30)
        assert not sync._thread.is_alive(), "closing the journal would wait forever"


def test_counting_skips_a_segment_deleted_meanwhile(folder: Path) -> None:
    with Journal(folder) as journal:
        journal.finish("o", b"row")
    (folder / "00000002.journal").symlink_to(folder / "gone")
    assert count_finished(folder) == 1


def test_counting_a_journal_deleted_meanwhile_finds_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An instance that completes deletes its journal, while `treadle status` lists it."""
    with Journal(folder) as journal:
        journal.finish("a", b"1")

    def delete_then_list(path: Path, *, original: Callable[[Path], Any]) -> Any:
        monkeypatch.undo()
        shutil.rmtree(folder)
        return original(path)

    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, partial(delete_then_list, original=getattr(os, name)))
    assert count_finished(folder) == 0


def test_empty_segment_after_a_power_loss_is_skipped(folder: Path) -> None:
    with Journal(folder) as journal:
        journal.finish("o", b"row")
    (folder / "00000002.journal").write_bytes(bytes(4096))
    (folder / "00000003.journal").write_bytes(b"TRD")
    with Journal(folder) as journal:
        assert journal.finished("o") == b"row"
        journal.finish("p", b"row")
    assert segments(folder)[-1].name == "00000004.journal"


def test_later_version_is_refused_by_name(folder: Path) -> None:
    with Journal(folder) as journal:
        journal.finish("o", b"row")
    (segment,) = segments(folder)
    segment.write_bytes(segment.read_bytes()[:7] + b"\x09" + segment.read_bytes()[8:])
    with pytest.raises(StorageError, match="version 9; this Treadle reads version 1"):
        Journal(folder)


def test_reading_creates_no_segment(folder: Path) -> None:
    with Journal(folder) as journal:
        assert journal.get("o", "llm-0") is None
        with pytest.raises(KeyError):
            journal.finished("o")
    assert segments(folder) == []


def test_disk_that_accepts_single_bytes_gets_whole_records(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:1]))
    with Journal(folder) as journal:
        journal.append("o", "llm-0", b"answer")
        journal.finish("p", b"row")
    monkeypatch.undo()
    with Journal(folder) as journal:
        assert (journal.get("o", "llm-0"), journal.finished("p"), journal.num_damaged) == (b"answer", b"row", 0)
