"""`treadle gc` of an object root: objects of the root, and this machine's working folder."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.runs.counting_stage import (
    DOUBLES,
    DOUBLING,
    count,
    counting,
    double,
    no_calls,  # noqa: F401 - an autouse fixture
    numbers_of,
)

from treadle.core.config import Section
from treadle.core.errors import RunError
from treadle.core.gc import commit_gate
from treadle.core.gc.collection import collect
from treadle.core.gc.commit_gate import collecting
from treadle.core.gc.garbage import plan_collection
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance, Stage, StageContext
from treadle.core.store.leases import hold_key
from treadle.core.store.object_storage import ObjectStorage

MIN_AGE_S = -3600
"""The server tells whole seconds, of its own clock."""


def folder_of(run: Run, address: str, kind: str) -> str:
    record = run.record(Address.parse(address))
    assert record is not None
    return record.outputs[kind].folder


def test_gc_deletes_replaced_artifacts_and_keeps_reachable_ones(object_root: str) -> None:
    run = Run.create(object_root, "r1", {}, {})
    execute(counting(count=2), run)
    execute(DOUBLING, run)
    read = folder_of(run, "1/count", "numbers")
    execute(counting(count=4), run)
    assert plan_collection(run.storage, MIN_AGE_S).garbage == []
    old = folder_of(run, "1/double", "doubles")
    execute(DOUBLING, run)
    (fetched,) = [key for key in run.storage.keys(old) if key.endswith(".parquet")]
    run.storage.local_copy(fetched)
    done = collect(run.storage, MIN_AGE_S)
    assert {(item.key, item.here) for item in done.removed} == {(read, False), (old, False), (old, True)}
    assert (list(run.storage.keys(read)), list(run.storage.keys(old))) == ([], [])
    assert not any(run.verify().values())
    assert plan_collection(run.storage, MIN_AGE_S).garbage == []


def test_gc_keeps_inputs_of_an_active_attempt(object_root: str) -> None:
    run = Run.create(object_root, "r1", {}, {})
    execute(counting(count=2), run)
    removed = []

    def slow(context: StageContext) -> Mapping[str, Any]:
        execute(counting(count=5), run)
        removed.append(collect(run.storage, MIN_AGE_S).removed)
        return double(context)

    stage = Stage(
        name="double", version=1, settings=Section, consumes={"numbers": "numbers"}, produces=(DOUBLES,), run=slow
    )
    execute(Instance(address=DOUBLING.address, stage=stage, settings=Section(), inputs=DOUBLING.inputs), run)
    assert removed == [[]]
    assert numbers_of(run, "1/double", "doubles") == [0, 2]


def test_commits_and_gc_wait_for_each_other(object_root: str) -> None:
    run = Run.create(object_root, "r1", {}, {})
    execute(counting(count=2), run)
    with (
        hold_key(run.storage, "locks/commits/other.lock", "a commit"),
        pytest.raises(RunError, match="committing its result"),
        collecting(run.storage, max_wait_s=0),
    ):
        pass
    with collecting(run.storage):
        thread = threading.Thread(target=execute, args=(counting(count=3), run))
        thread.start()
        assert numbers_of(run) == [0, 1]
        with pytest.raises(RunError, match="garbage collection"), collecting(run.storage, max_wait_s=0):
            pass
    thread.join()
    assert numbers_of(run) == [0, 1, 2]


class Watch:
    """Replaces the watch of leases of other machines: each is free at the second look."""

    def __init__(self) -> None:
        self.looked: list[str] = []

    def look(self, key: str) -> str:
        self.looked.append(key)
        return "free" if key == "locks/gc.lock" or self.looked.count(key) > 1 else "unknown"


def test_gc_waits_for_stale_commit_leases_together(object_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run, watch = Run.create(object_root, "r1", {}, {}), Watch()
    for name in "ab":
        with hold_key(run.storage, f"locks/commits/{name}.lock", "a commit"):
            pass
    monkeypatch.setattr(commit_gate, "watch_leases", lambda storage: watch)
    with collecting(run.storage):
        assert [key[-6] for key in watch.looked if "commits" in key][:4] == ["a", "b", "a", "b"]


def test_long_commit_does_not_let_gc_block_other_commits(object_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.create(object_root, "r1", {}, {})
    events: list[str] = []

    @contextmanager
    def hold(storage: ObjectStorage, key: str, what: str, **more: Any) -> Iterator[Any]:
        """Take leases; right after a collector's first one, make a commit that has missed it."""
        with hold_key(storage, key, what, **more) as lease, ExitStack() as stack:
            if key == "locks/gc.lock":
                events.append("taken")
                if events == ["taken"]:
                    stack.enter_context(hold_key(storage, "locks/commits/long.lock", "a commit"))
            yield lease
        events.append("given back")

    monkeypatch.setattr(commit_gate, "hold_key", hold)
    monkeypatch.setattr(commit_gate, "_SHORT_WAIT_S", 0.0)
    with (
        hold_key(run.storage, "locks/commits/before.lock", "a commit"),
        pytest.raises(RunError, match="committing its result"),
        collecting(run.storage, max_wait_s=0),
    ):
        pass
    assert events == [], "a collection that did not start blocks no commit"
    with collecting(run.storage):
        events.append("collects")
    assert events == ["taken", "given back", "taken", "collects", "given back"]


def test_gc_deletes_leftovers_of_this_machine_and_of_deleted_runs(object_root: str) -> None:
    run = Run.create(object_root, "r1", {}, {})
    storage = run.storage
    assert isinstance(storage, ObjectStorage)

    def stopped(context: StageContext) -> Mapping[str, Any]:
        context.workspace.mkdir(parents=True)
        (context.workspace / "state").write_bytes(b"s")
        context.journal.finish("n0", b"0")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(counting(stopped, count=1), run)
    (attempt,) = run.attempts(Address(1, "count"))
    name = attempt.fingerprint[:12]
    assert plan_collection(storage, MIN_AGE_S).garbage == []
    execute(counting(count, count=2), run)
    (storage.work / "artifacts").mkdir(exist_ok=True)
    (storage.work / "artifacts" / f".tmp-{'a' * 32}").mkdir()
    gone = Run.create(object_root, "r2", {}, {})
    gone.store("web").add("0" * 32, b"page")
    storage.delete("runs/r2/run.json")
    Path(storage.directory("runs/r3/journal/1/count/0123456789ab")).mkdir(parents=True)
    Path(storage.directory("runs/r3/journal/1/count/0123456789ab/00000001.journal")).write_bytes(b"j")
    done = collect(storage, MIN_AGE_S)
    journal = f"runs/r1/journal/1/count/{name}"
    assert {(item.key, item.here) for item in done.removed} >= {
        (journal, False),
        (journal, True),
        (f"runs/r1/workspaces/1/count/{name}", True),
        (f"artifacts/.tmp-{'a' * 32}", True),
        ("runs/r2", False),
        ("runs/r3", True),
    }
    assert (done.left, list(storage.keys("runs/r2")), list(storage.keys(journal))) == ([], [], [])
    assert sorted(os.listdir(storage.work / "runs")) == ["r1"]
    assert [key for key in storage.keys("") if key.startswith("runs/r3")] == []
    assert numbers_of(run) == [0, 1]
