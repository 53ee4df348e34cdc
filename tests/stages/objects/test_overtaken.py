"""A stage instance on an object root whose lease moved to another machine: what the former holder may still do."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.runs.counting_stage import (
    CALLS,
    count,
    counting,
    no_calls,  # noqa: F401 - an autouse fixture
    numbers_of,
)
from support.runs.processes import until
from support.servers.object_machines import ADDRESS, Machine, Time, execute_interrupted, on_machine

from treadle.core.errors import RunError
from treadle.core.journal.journal import Journal
from treadle.core.journal.upload import count_recorded
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.runs.stage import StageContext


@pytest.fixture
def run(object_root: str) -> Run:
    return Run.create(object_root, "r1", {}, {})


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time.of_leases(monkeypatch)


def overtaken(other: Run, time: Time) -> Callable[[StageContext], Mapping[str, Any]]:
    """Run a stage whose machine sleeps in the middle, while another one acquires the lease and completes."""

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
def test_holder_that_lost_its_lease_cannot_commit_a_result(
    run: Run, object_root: str, tmp_path: Path, time: Time, monkeypatch: pytest.MonkeyPatch, notices: bool
) -> None:
    """Even if it has not noticed: the token in the record is higher than its own."""
    other = on_machine(object_root, tmp_path)
    body = overtaken(other, time)
    if not notices:
        whole = body

        def body(context: StageContext) -> Mapping[str, Any]:
            metrics = whole(context)
            monkeypatch.setattr("treadle.core.store.object_lease.ObjectLease.check", lambda _: None)
            return metrics

    message = "no longer holds 1/count of run r1 .meanwhile process" if notices else "token 2, ours is 1"
    with pytest.raises(RunError, match=message) as error:
        execute(counting(body), run)
    assert "\n" not in str(error.value)
    monkeypatch.undo()
    assert numbers_of(run) == numbers_of(other) == [0, 1, 2]
    assert other.status(ADDRESS).state == run.status(ADDRESS).state == "completed"
    assert execute(counting(), run).reused
    assert all(problems == [] for problems in run.verify().values())


def test_records_of_a_holder_that_lost_its_lease_are_refused(
    run: Run, object_root: str, tmp_path: Path, time: Time
) -> None:
    other = on_machine(object_root, tmp_path)

    def body(context: StageContext) -> Mapping[str, Any]:
        context.journal.finish("n0", b"7")
        execute_interrupted(other, 1)
        context.journal.finish("n1", b"8")
        return {}

    with pytest.raises(RunError, match="no longer holds 1/count of run r1"):
        execute(counting(body), run)
    third = on_machine(object_root, tmp_path / "third")
    execute(counting(), third)
    assert CALLS == [1, 2]
    assert numbers_of(third) == [0, 1, 2]


PROGRAM = """
from treadle.core.journal import upload as journal_upload
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.runs.address import Address
from support.runs.counting_stage import counting
journal_upload.SEAL_INTERVAL_S = 0.05

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


def wait_until_sent(run: Run, num_finished: int) -> None:
    key = run.journal_key(ADDRESS, run.attempts(ADDRESS)[-1].fingerprint)
    until(lambda: count_recorded(run.storage, key) >= num_finished, f"{num_finished} records in the object store")


def test_machine_that_replaces_a_killed_one_repeats_no_uploaded_work(
    run: Run, object_root: str, tmp_path: Path
) -> None:
    first = Machine(PROGRAM, object_root, tmp_path / "a")
    assert first.line() == "0"
    second = Machine(PROGRAM, object_root, tmp_path / "b")
    _, error = second.end()
    assert second.process.returncode == 1
    assert f"is being run by process {first.process.pid} on" in error.splitlines()[-1]
    first.go_on()
    assert first.line() == "1"
    wait_until_sent(run, 2)
    first.process.kill()
    first.process.communicate()
    lines, error = Machine(PROGRAM, object_root, tmp_path / "b", passes_time=True).end()
    assert lines == ["2", "3", "4", "5", "done"], error
    assert numbers_of(run) == [0, 1, 2, 3, 4, 5]


def test_process_that_resumes_after_losing_its_lease_changes_nothing(
    run: Run, object_root: str, tmp_path: Path
) -> None:
    first = Machine(PROGRAM, object_root, tmp_path / "a")
    assert first.line() == "0"
    wait_until_sent(run, 1)
    first.process.send_signal(signal.SIGSTOP)
    second = Machine(PROGRAM, object_root, tmp_path / "b", passes_time=True)
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


def test_late_segment_of_a_holder_that_lost_its_lease_is_not_listed(run: Run, object_root: str, tmp_path: Path) -> None:
    execute_interrupted(run, 1)
    key = next(key for key in run.storage.keys("runs/r1/journal") if key.endswith(".json")).rpartition("/")[0]
    with Journal(tmp_path / "late", first_number=10_000_009) as journal:
        journal.finish("n1", b"999")
    run.storage.put(f"{key}/10000009.journal", (tmp_path / "late" / "10000009.journal").read_bytes())
    execute(counting(count), on_machine(object_root, tmp_path / "b"))
    assert CALLS == [1, 2]
    assert numbers_of(run) == [0, 1, 2]
