"""How an attempt at a stage instance ends, what it leaves, and how the next one resumes."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.runs.counting_stage import (
    CALLS,
    DOUBLING,
    count,
    counting,
    no_calls,  # noqa: F401 - an autouse fixture
    numbers_of,
)

from treadle.core.errors import JobsPending, StageFailed
from treadle.core.runs import run as run_module
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.runs.stage import StageContext


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path, "r1", {}, {})


def test_failure_leaves_no_record_and_the_next_attempt_continues(run: Run) -> None:
    def fail_once(context: StageContext) -> Mapping[str, Any]:
        context.journal.finish("n0", b"0")
        raise JobsPending("2 rollouts are owed")

    with pytest.raises(JobsPending, match="2 rollouts are owed"):
        execute(counting(fail_once), run)
    assert run.record(Address(1, "count")) is None
    status = run.status(Address(1, "count"))
    assert (status.state, status.error, status.num_finished) == ("failed", "2 rollouts are owed", 1)
    assert not list(run.storage.keys("artifacts"))
    record = execute(counting(), run)
    assert CALLS == [1, 2]
    assert record.attempt == 2
    assert run.status(Address(1, "count")).state == "completed"
    assert not list(run.storage.keys("runs/r1/journal"))


def test_stage_bug_prints_one_line_and_logs_a_traceback(run: Run) -> None:
    def stumble(context: StageContext) -> Mapping[str, Any]:
        raise ZeroDivisionError("nothing to divide by")

    with pytest.raises(StageFailed, match="1/count failed: ZeroDivisionError: nothing to divide by; the traceback"):
        execute(counting(stumble), run)
    log = run.storage.get("runs/r1/attempts/1/count/1/log.txt")
    assert log is not None and b"Traceback (most recent call last)" in log


def test_interrupt_is_recorded_and_reraised(run: Run) -> None:
    def interrupt(context: StageContext) -> Mapping[str, Any]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(counting(interrupt), run)
    assert run.status(Address(1, "count")).state == "interrupted"


def test_force_ignores_leftovers_of_an_unforced_attempt(run: Run) -> None:
    def cut_off(context: StageContext) -> Mapping[str, Any]:
        context.journal.finish("n0", b"0")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(counting(cut_off), run)
    execute(counting(), run, force=True)
    assert CALLS == [0, 1, 2]


def test_forcing_again_resumes_an_interrupted_forced_attempt(run: Run) -> None:
    execute(counting(), run)

    def cut_off(context: StageContext) -> Mapping[str, Any]:
        context.journal.finish("n0", b"0")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(counting(cut_off), run, force=True)
    assert execute(counting(), run).reused
    CALLS.clear()
    execute(counting(), run, force=True)
    assert CALLS == [1, 2]


def test_interrupted_forced_attempt_keeps_the_current_result(run: Run) -> None:
    def cut_off(context: StageContext) -> Mapping[str, Any]:
        context.journal.finish("n0", b"0")
        assert run.status(Address(1, "count")).state == "running"
        raise StageFailed("no more")

    def state() -> tuple[str, str | None, str | None, int]:
        status = run.status(Address(1, "count"))
        return status.state, status.forced_state, status.error, status.num_finished

    execute(counting(), run)
    with pytest.raises(StageFailed):
        execute(counting(cut_off), run, force=True)
    assert state() == ("completed", "failed", "no more", 1)
    attempt = run.attempts(Address(1, "count"))[-1]
    run.write_attempt(attempt.model_copy(update={"state": "running", "error": None}))
    assert state() == ("completed", "crashed", None, 1)
    execute(counting(), run, force=True)
    assert state() == ("completed", None, None, 0)
    # With other settings the rerun would make a different result.
    with pytest.raises(StageFailed):
        execute(counting(cut_off, count=4), run, force=True)
    assert state() == ("failed", None, "no more", 1)


def test_killed_attempt_shows_as_crashed_and_is_resumed(run: Run) -> None:
    """A kill leaves the attempt marked `running` with an expired lease."""

    def leave_off(context: StageContext) -> Mapping[str, Any]:
        context.journal.finish("n0", b"0")
        assert run.status(Address(1, "count")).state == "running"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(counting(leave_off), run)
    (attempt,) = run.attempts(Address(1, "count"))
    run.write_attempt(attempt.model_copy(update={"state": "running", "finished_at": None, "error": None}))
    status = run.status(Address(1, "count"))
    assert (status.state, status.num_finished) == ("crashed", 1)
    left = run.storage.directory("runs/r1/attempts/1/count/1/work") / ".tmp-left"
    left.mkdir(parents=True)
    execute(counting(), run)
    assert CALLS == [1, 2]
    assert not list(run.storage.directory("").rglob(".tmp-*"))


def test_attempt_that_ends_while_its_status_is_read_is_completed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its result, its last state and its lease are read one after the other."""
    address = Address(1, "count")
    execute(counting(), run)
    record, attempt = run.record(address), run.attempts(address)[-1]
    for read in ("record", "attempts", "holder_of"):
        with monkeypatch.context() as patch:
            target: Any = run_module if read == "holder_of" else Run
            original = getattr(target, read)

            def read_then_end(*asked: Any, original: Any = original, patch: pytest.MonkeyPatch = patch) -> Any:
                found = original(*asked)
                patch.undo()
                assert record is not None
                run.write_record(record)
                run.write_attempt(attempt)
                return found

            run.storage.delete(run.key(f"records/{address}.json"))
            run.write_attempt(attempt.model_copy(update={"state": "running"}))
            patch.setattr(target, read, read_then_end)
            status = run.status(address)
            assert (status.state, status.num_rows) == ("completed", {"numbers": 3}), f"it ended after {read}"


def test_attempt_killed_after_its_record_is_cleaned_up(run: Run) -> None:
    record = execute(counting(), run)
    (attempt,) = run.attempts(Address(1, "count"))
    run.write_attempt(attempt.model_copy(update={"state": "running"}))
    journal = run.storage.directory(run.journal_key(Address(1, "count"), record.fingerprint))
    journal.mkdir()
    assert run.status(Address(1, "count")).state == "completed"
    assert execute(counting(), run).reused
    assert not journal.exists()
    assert run.attempts(Address(1, "count"))[-1].state == "completed"


def test_stage_logs_go_to_the_attempt(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    # pytest-xdist cannot send a captured surrogate to its controller.
    monkeypatch.setattr(logging.getLogger("treadle"), "propagate", False)

    def speak(context: StageContext) -> Mapping[str, Any]:
        logging.getLogger("treadle.somewhere").info("heard \ud800")
        logging.getLogger("treadle.somewhere").info("\x1b]0;owned\x07\n2026-01-01 INFO forged: line")
        return count(context)

    before = logging.getLogger("treadle").handlers[:]
    execute(counting(speak), run)
    log = (run.storage.get("runs/r1/attempts/1/count/1/log.txt") or b"").decode()
    assert "heard \\ud800" in log
    assert "\x1b" not in log and "\n2026-01-01 INFO forged" not in log
    assert logging.getLogger("treadle").handlers == before


def test_result_is_valid_even_if_work_files_cannot_be_deleted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", refuse)
        record = execute(counting(), run)
    assert run.status(Address(1, "count")).state == "completed"
    assert list(run.storage.directory("").rglob(".tmp-deleted-work"))
    assert execute(counting(), run) == record.model_copy(update={"reused": True})
    assert not list(run.storage.directory("").rglob(".tmp-*"))
    assert not list(run.storage.keys("runs/r1/journal"))


def test_failure_after_the_record_leaves_the_instance_completed(run: Run) -> None:
    execute(counting(), run)
    (attempt,) = run.attempts(Address(1, "count"))
    run.write_attempt(attempt.model_copy(update={"state": "failed", "error": "the disk is full"}))
    status = run.status(Address(1, "count"))
    assert (status.state, status.error) == ("completed", None)
    assert execute(counting(), run).reused
    (attempt,) = run.attempts(Address(1, "count"))
    assert (attempt.state, attempt.error) == ("completed", None)


def test_unwritable_log_raises_nothing(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    """`/dev/full` refuses every write."""

    def speak(context: StageContext) -> Mapping[str, Any]:
        (handler,) = (item for item in logging.getLogger("treadle").handlers if isinstance(item, logging.FileHandler))
        handler.setStream(open("/dev/full", "w", encoding="utf-8"))  # noqa: SIM115 - the handler closes it
        logging.getLogger("treadle").info("lost")
        return count(context)

    assert execute(counting(speak), run).metrics == {"count": 3}
    assert capfd.readouterr().err == ""


def test_clock_set_back_changes_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts are ordered by number and results compared by fingerprint: later ones may bear earlier times."""
    years = itertools.count(2030, -1)
    for module in ("treadle.core.runs.run", "treadle.core.runs.attempt"):
        monkeypatch.setattr(f"{module}.utc_now", lambda: f"{next(years)}-01-01T00:00:00.000+00:00")

    def fail(context: StageContext) -> Mapping[str, Any]:
        context.journal.finish("n0", b"0")
        raise JobsPending("owed")

    for _ in range(2):
        with pytest.raises(JobsPending):
            execute(counting(fail), run)
    record = execute(counting(), run)
    assert CALLS == [1, 2]
    attempts = run.attempts(Address(1, "count"))
    assert [attempt.number for attempt in attempts] == [1, 2, 3]
    assert attempts[0].started_at > attempts[1].started_at > attempts[2].started_at > record.finished_at
    assert record.attempt == 3
    status = run.status(Address(1, "count"))
    assert (status.state, status.started_at) == ("completed", attempts[2].started_at)
    first = execute(DOUBLING, run)
    execute(counting(count=4), run)
    again = execute(DOUBLING, run)
    assert (again.reused, again.attempt) == (False, 2)
    assert again.finished_at < first.started_at
    assert numbers_of(run, "1/double", "doubles") == [0, 2, 4, 6]
    assert execute(DOUBLING, run).reused


def test_workspace_survives_a_failed_attempt_and_is_deleted_with_the_work(tmp_path: Path) -> None:
    seen: list[bool] = []

    def work(context: StageContext) -> Mapping[str, Any]:
        state = context.workspace / "state"
        seen.append(state.exists())
        context.workspace.mkdir(parents=True, exist_ok=True)
        state.write_text("half")
        if len(seen) in (1, 3):
            raise StageFailed("cut off")
        return count(context)

    run = Run.create(tmp_path, "r", {}, {})
    with pytest.raises(StageFailed):
        execute(counting(work), run)
    execute(counting(work), run)
    with pytest.raises(StageFailed):
        execute(counting(work), run, force=True)
    execute(counting(work), run, force=True)
    execute(counting(work), run, force=True)
    assert seen == [False, True, False, True, False], "a forced run starts from scratch, and resumes if it was cut off"
    assert not list((tmp_path / "runs" / "r").rglob("state"))


@pytest.mark.parametrize("code", [0, "no such option"])
def test_exit_in_code_of_a_user_fails_the_stage(run: Run, code: int | str) -> None:
    def leave(context: StageContext) -> Mapping[str, Any]:
        sys.exit(code)

    with pytest.raises(StageFailed, match=f"1/count failed: SystemExit: {code}; the traceback is in"):
        execute(counting(leave), run)
    assert run.status(Address(1, "count")).state == "failed"
