"""A stage instance on an object root whose endpoint is down, silent, or fails at any request."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from support.runs.counting_stage import (
    CALLS,
    counting,
    no_calls,  # noqa: F401 - an autouse fixture
    numbers_of,
)
from support.runs.processes import until
from support.servers.faulty_proxy import FAULTS, Fault, FaultyProxy, faulty_proxy
from support.servers.object_machines import ADDRESS, Time
from support.servers.object_server import ObjectServer, in_environment
from support.sweep import sampled

from treadle.core.errors import RunError, StageFailed, StorageError, TreadleError
from treadle.core.runs.execute import execute
from treadle.core.runs.locked_config import create_or_open_run
from treadle.core.runs.run import Run, list_runs
from treadle.core.runs.stage import StageContext
from treadle.core.store.object_lease import LeaseTimes

STRIDE = int(os.environ.get("TREADLE_FAULT_STRIDE", "59"))


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time.of_leases(monkeypatch)


@pytest.fixture
def proxy(objects: ObjectServer, object_root: str) -> Iterator[FaultyProxy]:
    with faulty_proxy(objects.url) as started, in_environment({"AWS_ENDPOINT_URL": started.url}):
        yield started


def test_long_endpoint_outage_stops_the_stage_with_one_line_and_loses_nothing(
    proxy: FaultyProxy, object_root: str, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasty(monkeypatch)
    eager = LeaseTimes(renew_s=0.01, clock=lambda: time.now, sleep=time.pass_)
    monkeypatch.setattr("treadle.core.store.object_lease.TIMES", eager)
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


def test_recording_does_not_wait_for_the_endpoint(
    proxy: FaultyProxy, object_root: str, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renewal hangs meanwhile, and records are written from an event loop."""
    monkeypatch.setattr("treadle.core.journal.upload.SEAL_INTERVAL_S", 3600.0)
    hasty(monkeypatch)
    eager = LeaseTimes(renew_s=0.01, clock=lambda: time.now, sleep=time.pass_)
    monkeypatch.setattr("treadle.core.store.object_lease.TIMES", eager)
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
    from treadle.core.store.object_storage import RetryPolicy

    for name in (
        "store.object_storage.RETRY_POLICY",
        "store.object_lease._RETRY_POLICY",
        "journal.upload._BRIEF_POLICY",
    ):
        monkeypatch.setattr(f"treadle.core.{name}", RetryPolicy(retries=0))


@pytest.mark.parametrize("fault", sampled(FAULTS, [FAULTS[0], FAULTS[-1]]))
def test_fault_at_any_request_leaves_the_old_or_the_new_state(
    proxy: FaultyProxy, object_root: str, time: Time, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    """TREADLE_FAULT_STRIDE=1 tries every request; the next call always resumes."""
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
        execute(counting(), create_or_open_run(root, "r1", {}, {}))
    except TreadleError as error:
        assert isinstance(error, (StorageError, RunError)) and not isinstance(error, StageFailed)
        assert "\n" not in str(error)
        return True
    return False
