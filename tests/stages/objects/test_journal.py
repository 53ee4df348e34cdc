"""The journal on an object root: what was sent up, what only one machine has, and what a power loss leaves of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from support.runs.counting_stage import (
    CALLS,
    counting,
    no_calls,  # noqa: F401 - an autouse fixture
    numbers_of,
)
from support.runs.processes import until
from support.servers.object_machines import ADDRESS, execute_interrupted, on_machine
from support.sweep import sampled

from treadle.core.journal.journal import Journal
from treadle.core.journal.upload import JournalUploader
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.runs.stage import StageContext


@pytest.fixture
def run(object_root: str) -> Run:
    return Run.create(object_root, "r1", {}, {})


def test_unsent_entries_are_dropped_once_another_machine_has_continued(
    run: Run, object_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values of both would otherwise be mixed: what the other machine did was not made with them in sight."""
    with monkeypatch.context() as patch:
        patch.setattr("treadle.core.journal.upload.JournalUploader.upload_new", lambda *_: None)
        execute_interrupted(run, 1)
    assert run.status(ADDRESS).num_finished == 1
    other = on_machine(object_root, tmp_path)
    assert other.status(ADDRESS).num_finished == 0

    def other_value(context: StageContext) -> Mapping[str, Any]:
        assert not context.journal.is_finished("n0")
        context.journal.finish("n0", b"100")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(counting(other_value), other)
    execute(counting(), run)
    assert numbers_of(run) == [100, 1, 2]
    assert CALLS == [1, 2]


def test_unsent_entries_are_reused_on_their_machine(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("treadle.core.journal.upload.JournalUploader.upload_new", lambda *_: None)
        execute_interrupted(run, 2)
    execute(counting(), run)
    assert CALLS == [2]


def test_records_written_next_to_an_upload_are_counted_and_sent_once_sealed(
    run: Run, object_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal = Journal.seal

    def seal_between_records(journal: Journal) -> tuple[set[int], int]:
        journal.finish("n1", b"1")
        sealed = seal(journal)
        journal.finish("n2", b"2")
        return sealed

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "seal", seal_between_records)
        execute_interrupted(run, 1)
    other = on_machine(object_root, tmp_path)
    assert other.status(ADDRESS).num_finished == 2
    execute(counting(), other)
    assert CALLS == [2]
    assert numbers_of(other) == [0, 1, 2]


def test_uploads_continue_after_an_unforeseen_error(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("treadle.core.journal.upload.SEAL_INTERVAL_S", 0.01)
    upload_new, errors = JournalUploader.upload_new, [RuntimeError("can't start new thread")]

    def fail_once(uploader: JournalUploader, journal: Journal) -> None:
        if errors:
            raise errors.pop()
        upload_new(uploader, journal)

    def wait_for_upload(context: StageContext) -> Mapping[str, Any]:
        context.journal.finish("n0", b"0")
        sent = run.key("journal")
        until(lambda: any(key.endswith(".journal") for key in run.storage.keys(sent)), "the record is uploaded")
        raise KeyboardInterrupt

    monkeypatch.setattr(JournalUploader, "upload_new", fail_once)
    with pytest.raises(KeyboardInterrupt):
        execute(counting(wait_for_upload), run)
    assert "records cannot be uploaded and stay on this machine for now: can't start new thread" in caplog.messages


def test_unsent_entries_count_as_soon_as_their_machine_continues(
    run: Run, object_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("treadle.core.journal.upload.JournalUploader.upload_new", lambda *_: None)
        execute_interrupted(run, 2)
        execute_interrupted(run, 0)
    assert on_machine(object_root, tmp_path).status(ADDRESS).num_finished == 2


def test_journal_with_a_missing_listed_segment_is_not_used(run: Run, object_root: str, tmp_path: Path) -> None:
    """Later records were made with the lost ones in sight."""
    execute_interrupted(run, 1)
    execute_interrupted(run, 2)
    doomed = next(key for key in run.storage.keys("runs/r1/journal") if key.endswith(".journal"))
    run.storage.delete(doomed)
    execute(counting(), on_machine(object_root, tmp_path))
    assert CALLS == [0, 1, 2]


def cut_short(content: bytes) -> bytes:
    return content[:-1]


def truncated_after_a_record(content: bytes) -> bytes:
    """Truncate it where the rest does not show that there was more."""
    return content[: content.rindex(b"\xffTJ\xfe")]


def zeroed_out(content: bytes) -> bytes:
    return bytes(len(content))


def changed(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


HURTS = (cut_short, truncated_after_a_record, zeroed_out, changed)


@pytest.mark.parametrize(
    ("hurt", "listed"),
    sampled(
        product(HURTS, [True, False]),
        [(cut_short, True), (truncated_after_a_record, False), (zeroed_out, False), (changed, True)],
    ),
)
def test_uploaded_segment_wins_over_a_truncated_local_one(
    run: Run, monkeypatch: pytest.MonkeyPatch, hurt: Callable[[bytes], bytes], listed: bool
) -> None:
    with monkeypatch.context() as patch:
        if not listed:
            whole = JournalUploader._put_list
            patch.setattr(JournalUploader, "_put_list", lambda self, some, n: None if some else whole(self, some, n))
        execute_interrupted(run, 2)
    (segment,) = run.storage.directory("runs/r1/journal").rglob("*.journal")
    segment.write_bytes(hurt(segment.read_bytes()))
    execute(counting(), run)
    assert CALLS == [2]
    assert numbers_of(run) == [0, 1, 2]


def test_missing_listed_segment_that_is_truncated_locally_is_not_uploaded(
    run: Run, object_root: str, tmp_path: Path
) -> None:
    execute_interrupted(run, 2)
    (segment,) = run.storage.directory("runs/r1/journal").rglob("*.journal")
    segment.write_bytes(cut_short(segment.read_bytes()))
    other = on_machine(object_root, tmp_path).storage
    other.delete(next(key for key in other.keys("runs/r1/journal") if key.endswith(".journal")))
    execute(counting(), run)
    assert CALLS == [0, 1, 2]


def test_missing_listed_segment_is_uploaded_again_by_its_machine(run: Run, object_root: str, tmp_path: Path) -> None:
    execute_interrupted(run, 1)
    execute_interrupted(run, 2)
    other = on_machine(object_root, tmp_path)
    doomed = next(key for key in other.storage.keys("runs/r1/journal") if key.endswith(".journal"))
    other.storage.delete(doomed)
    execute_interrupted(run, 0)
    assert doomed in set(other.storage.keys("runs/r1/journal"))
    execute(counting(), other)
    assert CALLS == [2]
