"""Stage instances on an object root: the tests of the local one again, two machines, zombies, faults."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.faulty_proxy import FAULTS, Fault, FaultyProxy, faulty_proxy
from support.object_server import ObjectServer, in_environment
from support.processes import until
from unit import test_execute as local
from unit.test_execute import (  # noqa: F401 - the same tests, with the `run` of this file
    CALLS,
    _no_calls,
    count,
    counting,
    numbers_of,
    test_a_bug_in_a_stage_becomes_one_line_and_a_traceback_in_the_log,
    test_a_changed_input_runs_it_again_and_an_equal_one_does_not,
    test_a_changed_setting_runs_it_again,
    test_a_clock_that_is_set_back_changes_nothing,
    test_a_failure_behind_the_record_leaves_the_instance_completed,
    test_a_failure_leaves_no_record_and_the_next_attempt_continues,
    test_a_finished_instance_is_not_run_again,
    test_a_killed_attempt_shows_as_crashed_and_is_continued,
    test_a_lost_artifact_is_made_again,
    test_a_missing_input_names_what_to_run_first,
    test_a_stage_that_makes_nothing_fails,
    test_an_attempt_killed_after_its_record_is_tidied_up,
    test_an_interrupt_is_recorded_and_passed_on,
    test_force_does_not_take_up_what_an_unforced_attempt_left,
    test_force_starts_from_nothing,
    test_forcing_again_continues_a_forced_attempt_that_was_cut_off,
    test_stage_logs_go_to_the_attempt,
    test_telemetry_lies_beside_the_attempt_and_not_in_the_digest,
    test_two_at_once_are_refused,
)

from treadle.core.errors import RunError, StageFailed, StorageError, TreadleError
from treadle.core.execute import execute
from treadle.core.journal import Journal
from treadle.core.journal_upload import JournalCopy, count_recorded
from treadle.core.object_lease import LeaseTimes
from treadle.core.runs import Run, list_runs
from treadle.core.stage import Address, StageContext

ADDRESS = Address(1, "count")
STRIDE = int(os.environ.get("TREADLE_FAULT_STRIDE", "29"))


@pytest.fixture
def run(object_root: str) -> Run:
    return Run.create(object_root, "r1", {}, {})


def on_machine(root: str, folder: Path) -> Run:
    """The run as another machine sees it."""
    with in_environment({"TREADLE_WORK": str(folder)}):
        return Run.open(root, "r1")


class Time:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def pass_(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(
        "treadle.core.object_lease.TIMES", LeaseTimes(renew_s=1e6, clock=lambda: time.now, sleep=time.pass_)
    )
    return time


def test_a_run_is_made_once_and_found_from_every_machine(run: Run, object_root: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=f"run r1 exists already in {object_root}; resume it"):
        Run.create(object_root, "r1", {}, {})
    with pytest.raises(RunError, match="there is no run r2 in .*; runs there: r1"):
        Run.open(object_root, "r2")
    assert list_runs(object_root) == ["r1"]
    execute(counting(), run)
    other = on_machine(object_root, tmp_path)
    assert numbers_of(other) == [0, 1, 2]
    assert execute(counting(), other).reused
    assert other.statuses() == run.statuses()
    assert other.verify() == {key: [] for key in run.verify()}


def test_another_machine_goes_on_with_what_was_sent_up(run: Run, object_root: str, tmp_path: Path) -> None:
    execute_cut_off(run, 2)
    other = on_machine(object_root, tmp_path)
    status = other.status(ADDRESS)
    assert (status.state, status.num_finished) == ("interrupted", 2)
    execute(counting(), other)
    assert CALLS == [2]
    assert not list(other.storage.keys("runs/r1/journal"))


def execute_cut_off(run: Run, num_finished: int, **options: Any) -> None:
    """An attempt that is interrupted after so many numbers."""

    def cut_off(context: StageContext) -> Mapping[str, Any]:
        for number in range(num_finished):
            context.journal.finish(f"n{number}", str(number).encode())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(counting(cut_off), run, **options)


def test_what_never_went_up_counts_no_more_once_another_machine_has_worked(
    run: Run, object_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values of both would otherwise be mixed: what the other machine did was not made with them in sight."""
    with monkeypatch.context() as patch:
        patch.setattr("treadle.core.journal_upload.JournalCopy.send_new", lambda *_: None)
        execute_cut_off(run, 1)
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


def test_what_never_went_up_is_used_again_on_its_machine(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("treadle.core.journal_upload.JournalCopy.send_new", lambda *_: None)
        execute_cut_off(run, 2)
    execute(counting(), run)
    assert CALLS == [2]


def test_force_on_another_machine_takes_up_nothing(run: Run, object_root: str, tmp_path: Path) -> None:
    execute_cut_off(run, 2)
    other = on_machine(object_root, tmp_path)
    execute_cut_off(other, 0, force=True)
    execute(counting(), run)
    assert CALLS == [0, 1, 2]


def overtaken(other: Run, time: Time) -> Callable[[StageContext], Mapping[str, Any]]:
    """A stage whose machine sleeps in the middle of it, while another one takes over and completes."""

    def body(context: StageContext) -> Mapping[str, Any]:
        context.journal.finish("n0", b"7")
        record = execute(counting(), other)
        assert (record.token, record.attempt) == (2, 2)
        time.pass_(1.0)
        for number in range(3):
            context.write("numbers", [{"number": 100 + number}])
        return {}

    return body


@pytest.mark.parametrize("notices", [True, False])
def test_a_holder_that_was_overtaken_puts_nothing_in_force(
    run: Run, object_root: str, tmp_path: Path, time: Time, monkeypatch: pytest.MonkeyPatch, notices: bool
) -> None:
    """Also where it has not noticed: the token in the record is higher than its own."""
    other = on_machine(object_root, tmp_path)
    body = overtaken(other, time)
    if not notices:
        whole = body

        def body(context: StageContext) -> Mapping[str, Any]:
            metrics = whole(context)
            monkeypatch.setattr("treadle.core.object_lease.ObjectLease.check", lambda _: None)
            return metrics

    message = "no longer holds 1/count of run r1 .meanwhile process" if notices else "its token is 2, ours 1"
    with pytest.raises(RunError, match=message) as error:
        execute(counting(body), run)
    assert "\n" not in str(error.value)
    monkeypatch.undo()
    assert numbers_of(run) == numbers_of(other) == [0, 1, 2]
    assert other.status(ADDRESS).state == run.status(ADDRESS).state == "completed"
    assert execute(counting(), run).reused
    assert all(problems == [] for problems in run.verify().values())


def test_what_an_overtaken_holder_records_is_refused(run: Run, object_root: str, tmp_path: Path, time: Time) -> None:
    other = on_machine(object_root, tmp_path)

    def body(context: StageContext) -> Mapping[str, Any]:
        context.journal.finish("n0", b"7")
        execute_cut_off(other, 1)
        context.journal.finish("n1", b"8")
        return {}

    with pytest.raises(RunError, match="no longer holds 1/count of run r1"):
        execute(counting(body), run)
    third = on_machine(object_root, tmp_path / "third")
    execute(counting(), third)
    assert CALLS == [1, 2]
    assert numbers_of(third) == [0, 1, 2]


@pytest.fixture
def proxy(objects: ObjectServer, object_root: str) -> Iterator[FaultyProxy]:
    with faulty_proxy(objects.url) as started, in_environment({"AWS_ENDPOINT_URL": started.url}):
        yield started


def test_an_endpoint_that_is_down_for_long_stops_the_stage_with_one_line_and_loses_nothing(
    proxy: FaultyProxy, object_root: str, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasty(monkeypatch)
    eager = LeaseTimes(renew_s=0.01, clock=lambda: time.now, sleep=time.pass_)
    monkeypatch.setattr("treadle.core.object_lease.TIMES", eager)
    run = Run.create(object_root, "r1", {}, {})

    def body(context: StageContext) -> Mapping[str, Any]:
        context.journal.finish("n0", b"0")
        proxy.plan = lambda _number, _method: "drop before"
        dropped = len(proxy.seen)
        context.journal.finish("n1", b"1")
        until(lambda: len(proxy.seen) > dropped + 1, "a renewal has failed")
        time.pass_(26.0)
        context.journal.finish("n2", b"2")
        return {}

    with pytest.raises(RunError, match="no longer holds 1/count of run r1 .*does not answer.*same command") as error:
        execute(counting(body), run)
    assert "\n" not in str(error.value)
    proxy.plan = lambda _number, _method: None
    assert run.status(ADDRESS).state == "crashed"
    execute(counting(), run)
    assert CALLS == [2]
    assert numbers_of(run) == [0, 1, 2]


def test_a_record_waits_for_no_endpoint(
    proxy: FaultyProxy, object_root: str, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renewal hangs meanwhile, and whoever writes records is an event loop."""
    monkeypatch.setattr("treadle.core.journal_upload.SEAL_INTERVAL_S", 3600.0)
    hasty(monkeypatch)
    eager = LeaseTimes(renew_s=0.01, clock=lambda: time.now, sleep=time.pass_)
    monkeypatch.setattr("treadle.core.object_lease.TIMES", eager)
    run = Run.create(object_root, "r1", {}, {})
    first_heard: list[int] = []

    def body(context: StageContext) -> Mapping[str, Any]:
        proxy.plan = lambda _number, _method: "silence"
        silent_since = len(proxy.seen)
        until(lambda: len(proxy.seen) > silent_since, "a renewal hangs")
        context.journal.finish("n0", b"0")
        time.pass_(26.0)
        try:
            context.journal.finish("n1", b"1")
        finally:
            first_heard.append(len(proxy.seen) - silent_since)
            proxy.plan = lambda _number, _method: None
            proxy.ended.set()
        return {}

    with pytest.raises(RunError, match="no longer holds 1/count of run r1"):
        execute(counting(body), run)
    assert first_heard == [1], "the record asked the endpoint"
    proxy.plan = lambda _number, _method: None
    execute(counting(), run)
    assert CALLS == [1, 2]


def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """No retries: each fault is felt."""
    from treadle.core.object_storage import Patience

    for name in ("object_storage.PATIENCE", "object_lease._PATIENCE", "journal_upload._BRIEF"):
        monkeypatch.setattr(f"treadle.core.{name}", Patience(retries=0))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_any_request_leaves_the_old_state_or_the_new(
    proxy: FaultyProxy, object_root: str, time: Time, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    """TREADLE_FAULT_STRIDE=1 tries every request; the next call always goes on."""
    hasty(monkeypatch)
    expected, number, reached = None, FAULTS.index(fault) * 5 % STRIDE, True
    while reached:
        root = f"{object_root}/{number}"
        proxy.plan, first = (lambda _number, _method: None), len(proxy.seen)
        proxy.plan = lambda n, _, at=first + number: fault if n == at else None  # type: ignore[misc]
        failed = stumbles(root)
        reached = len(proxy.seen) > first + number
        proxy.plan = lambda _number, _method: None
        if failed and list_runs(root):
            run = Run.open(root, "r1")
            assert run.status(ADDRESS).state in ("absent", "crashed", "failed", "completed")
            assert all(problems == [] for problems in run.verify().values())
        assert not stumbles(root), "the next call did not go on"
        run = Run.open(root, "r1")
        assert run.status(ADDRESS).state == "completed"
        assert numbers_of(run) == [0, 1, 2]
        expected = expected or run.records()[0].outputs
        assert run.records()[0].outputs == expected
        number += STRIDE


def stumbles(root: str) -> bool:
    try:
        execute(counting(), Run.create_or_open(root, "r1", {}, {}))
    except TreadleError as error:
        assert isinstance(error, (StorageError, RunError)) and not isinstance(error, StageFailed)
        assert "\n" not in str(error)
        return True
    return False


PROGRAM = """
import os, signal, sys
from treadle.core import journal_upload, object_lease
from treadle.core.execute import execute
from treadle.core.runs import Run
from treadle.core.stage import Address
from unit.test_execute import counting
journal_upload.SEAL_INTERVAL_S = 0.05
object_lease.TIMES = object_lease.LeaseTimes(length_s=2.0, renew_s=0.2, safety_s=0.3)
object_lease._POLL_S = 0.1

def work(context):
    for number in range(context.settings.count):
        if not context.journal.is_finished(f"n{number}"):
            context.journal.finish(f"n{number}", str(number).encode())
            print(number, flush=True)
            sys.stdin.readline()
    for number in range(context.settings.count):
        context.write("numbers", [{"number": int(context.journal.finished(f"n{number}"))}])
    return {}

execute(counting(work, count=6), Run.open(sys.argv[1], "r1"))
print("done", flush=True)
"""


class Worker:
    """A process on a machine of its own that works out one number per line it is given."""

    def __init__(self, root: str, work: Path) -> None:
        environment = {**os.environ, "TREADLE_WORK": str(work), "PYTHONPATH": str(Path(local.__file__).parents[1])}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, root], stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go_on(self, lines: int = 1) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n" * lines)
        self.process.stdin.flush()

    def end(self) -> tuple[list[str], str]:
        out, err = self.process.communicate("\n" * 10)
        return out.split(), err


def wait_until_sent(run: Run, num_finished: int) -> None:
    key = run.journal_key(ADDRESS, run.attempts(ADDRESS)[-1].fingerprint)
    until(lambda: count_recorded(run.storage, key) >= num_finished, f"{num_finished} records in the object store")


def test_a_machine_takes_over_from_a_killed_one_and_works_out_nothing_twice_that_was_sent_up(
    run: Run, object_root: str, tmp_path: Path
) -> None:
    first = Worker(object_root, tmp_path / "a")
    assert first.line() == "0"
    second = Worker(object_root, tmp_path / "b")
    _, error = second.end()
    assert second.process.returncode == 1
    assert f"is being run by process {first.process.pid} on" in error.splitlines()[-1]
    first.go_on()
    assert first.line() == "1"
    wait_until_sent(run, 2)
    first.process.kill()
    first.process.communicate()
    lines, error = Worker(object_root, tmp_path / "b").end()
    assert lines == ["2", "3", "4", "5", "done"], error
    assert numbers_of(run) == [0, 1, 2, 3, 4, 5]


def test_a_process_that_was_stopped_and_goes_on_after_another_took_over_changes_nothing(
    run: Run, object_root: str, tmp_path: Path
) -> None:
    first = Worker(object_root, tmp_path / "a")
    assert first.line() == "0"
    wait_until_sent(run, 1)
    first.process.send_signal(signal.SIGSTOP)
    second = Worker(object_root, tmp_path / "b")
    assert second.line() == "1"
    first.process.send_signal(signal.SIGCONT)
    _, error = first.end()
    assert first.process.returncode == 1
    assert "no longer holds 1/count of run r1" in error.splitlines()[-1]
    assert f"process {second.process.pid} on" in error.splitlines()[-1]
    lines, error = second.end()
    assert lines == ["2", "3", "4", "5", "done"], error
    record = run.record(ADDRESS)
    assert record is not None and record.token == 2
    assert numbers_of(run) == [0, 1, 2, 3, 4, 5]
    assert run.status(ADDRESS).state == "completed"


def test_a_segment_that_an_overtaken_holder_sends_up_late_is_on_no_list(
    run: Run, object_root: str, tmp_path: Path
) -> None:
    execute_cut_off(run, 1)
    key = next(key for key in run.storage.keys("runs/r1/journal") if key.endswith(".json")).rpartition("/")[0]
    with Journal(tmp_path / "late", first_number=10_000_009) as journal:
        journal.finish("n1", b"999")
    run.storage.put(f"{key}/10000009.journal", (tmp_path / "late" / "10000009.journal").read_bytes())
    execute(counting(count), on_machine(object_root, tmp_path / "b"))
    assert CALLS == [1, 2]
    assert numbers_of(run) == [0, 1, 2]


def test_a_journal_that_lacks_a_listed_segment_is_not_used(run: Run, object_root: str, tmp_path: Path) -> None:
    """Later records were made with the lost ones in sight."""
    execute_cut_off(run, 1)
    execute_cut_off(run, 2)
    doomed = next(key for key in run.storage.keys("runs/r1/journal") if key.endswith(".journal"))
    run.storage.delete(doomed)
    execute(counting(), on_machine(object_root, tmp_path))
    assert CALLS == [0, 1, 2]


def cut_short(content: bytes) -> bytes:
    return content[:-1]


def cut_behind_a_record(content: bytes) -> bytes:
    """Nothing of what is left tells that there was more."""
    return content[: content.rindex(b"\xffTJ\xfe")]


def lost_but_for_its_length(content: bytes) -> bytes:
    return bytes(len(content))


def changed(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


@pytest.mark.parametrize("hurt", [cut_short, cut_behind_a_record, lost_but_for_its_length, changed])
@pytest.mark.parametrize("listed", [True, False], ids=["listed", "not listed yet"])
def test_what_was_sent_up_wins_over_what_a_power_loss_left_of_it(
    run: Run, monkeypatch: pytest.MonkeyPatch, hurt: Callable[[bytes], bytes], listed: bool
) -> None:
    with monkeypatch.context() as patch:
        if not listed:
            whole = JournalCopy._put_list
            patch.setattr(JournalCopy, "_put_list", lambda self, some, n: None if some else whole(self, some, n))
        execute_cut_off(run, 2)
    (segment,) = run.storage.directory("runs/r1/journal").rglob("*.journal")
    segment.write_bytes(hurt(segment.read_bytes()))
    execute(counting(), run)
    assert CALLS == [2]
    assert numbers_of(run) == [0, 1, 2]


def test_a_listed_segment_that_is_missing_and_torn_on_its_machine_is_not_sent_up(
    run: Run, object_root: str, tmp_path: Path
) -> None:
    execute_cut_off(run, 2)
    (segment,) = run.storage.directory("runs/r1/journal").rglob("*.journal")
    segment.write_bytes(cut_short(segment.read_bytes()))
    other = on_machine(object_root, tmp_path).storage
    other.delete(next(key for key in other.keys("runs/r1/journal") if key.endswith(".journal")))
    execute(counting(), run)
    assert CALLS == [0, 1, 2]


def test_a_listed_segment_that_is_missing_is_sent_up_again_by_its_machine(
    run: Run, object_root: str, tmp_path: Path
) -> None:
    execute_cut_off(run, 1)
    execute_cut_off(run, 2)
    other = on_machine(object_root, tmp_path)
    doomed = next(key for key in other.storage.keys("runs/r1/journal") if key.endswith(".journal"))
    other.storage.delete(doomed)
    execute_cut_off(run, 0)
    assert doomed in set(other.storage.keys("runs/r1/journal"))
    execute(counting(), other)
    assert CALLS == [2]
