"""The gate between commits and the collection of garbage, on a local root."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path

import pytest
from support.runs.counting_stage import counting, no_calls, numbers_of  # noqa: F401 - `no_calls` is an autouse fixture

from treadle.core.errors import RunError
from treadle.core.gc.commit_gate import collecting, committing
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path, "r1", {}, {})


def test_commit_waits_for_gc(run: Run) -> None:
    execute(counting(count=2), run)
    with collecting(run.storage):
        thread = threading.Thread(target=execute, args=(counting(count=3), run))
        thread.start()
        assert numbers_of(run) == [0, 1]
        with pytest.raises(RunError, match="committing its result"), collecting(run.storage, max_wait_s=0):
            pass
    thread.join()
    assert numbers_of(run) == [0, 1, 2]
    with committing(run.storage, "a"), committing(run.storage, "b"):
        pass


def test_back_to_back_commits_do_not_starve_gc(run: Run) -> None:
    order: list[str] = []

    def collected() -> None:
        with collecting(run.storage):
            order.append("collection")

    def committed() -> None:
        with committing(run.storage, "b"):
            order.append("b")

    with committing(run.storage, "a"):
        collection = threading.Thread(target=collected)
        collection.start()
        entry_lock = run.storage.directory(".collection.lock")
        with entry_lock.open() as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    break
                fcntl.flock(lock, fcntl.LOCK_UN)
        commit = threading.Thread(target=committed)
        commit.start()
        assert order == []
    collection.join()
    commit.join()
    assert order == ["collection", "b"]
