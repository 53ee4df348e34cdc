"""A root moved, renamed, deleted or replaced during a stage ends it with one line: no second root, no loss."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from treadle.core.config import Section
from treadle.core.engines.event_log import EventLog
from treadle.core.engines.process import start_child
from treadle.core.engines.training import follow
from treadle.core.errors import StorageError
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.locked_config import create_or_open_run
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance, Stage, StageContext
from treadle.core.store.locks import FileLease
from treadle.core.store.storage import LocalStorage
from treadle.core.tables import Table

NUMBERS = Table("numbers", 1, ("number",), pa.schema([pa.field("number", pa.int64(), nullable=False)]), "Numbers.")
COUNTING = Address(1, "count")
LOCK = "runs/r1/locks/1/count.lock"


def counting(asked: list[str], mishap: Callable[[str], None]) -> Instance:
    """Make two numbers at a cost; `mishap` is called with the name of each step before it."""

    def count(context: StageContext) -> Mapping[str, Any]:
        for owner in ("1", "2"):
            if not context.journal.is_finished(owner):
                asked.append(owner)
                mishap(owner)
                context.journal.finish(owner, owner.encode())
        mishap("rows")
        context.write("numbers", [{"number": int(context.journal.finished(owner))} for owner in ("1", "2")])
        mishap("commit")
        return {}

    stage = Stage(name="count", version=1, settings=Section, produces=(NUMBERS,), run=count)
    return Instance(address=COUNTING, stage=stage, settings=Section())


def renamed(root: Path) -> Path:
    root.rename(root.with_name("new"))
    return root.with_name("new")


def replaced(root: Path) -> Path:
    new = renamed(root)
    root.mkdir()
    return new


def run_renamed(root: Path) -> Path:
    (root / "runs/r1").rename(root / "runs/r2")
    return root


def deleted(root: Path) -> Path:
    shutil.rmtree(root)
    return root


def lock_deleted(root: Path) -> Path:
    (root / LOCK).unlink()
    return root


MISHAPS = [renamed, replaced, run_renamed, deleted, lock_deleted]


@pytest.mark.covers("flywheel-25")
@pytest.mark.parametrize("moment", ["2", "rows", "commit"])
@pytest.mark.parametrize("mishap", MISHAPS)
def test_root_moved_during_a_stage_ends_it_with_one_line(
    mishap: Callable[[Path], Path], moment: str, tmp_path: Path
) -> None:
    root, asked = tmp_path / "root", list[str]()
    places: list[Path] = []

    def strike(now: str) -> None:
        if now == moment:
            places.append(mishap(root))

    run = create_or_open_run(root, "r1", {}, {})
    with pytest.raises(StorageError, match="was moved.* run the same command again") as caught:
        execute(counting(asked, strike), run)
    assert "\n" not in str(caught.value) and str(root) in str(caught.value)
    (place,) = places
    assert not root.exists() if mishap in (renamed, deleted) else mishap is not replaced or not list(root.iterdir())
    if mishap is run_renamed:
        assert not (root / "runs/r1").exists()
        (root / "runs/r2").rename(root / "runs/r1")
    if mishap is deleted:
        return
    again: list[str] = []
    record = execute(counting(again, lambda _: None), Run.open(place, "r1"))
    assert record.outputs["numbers"].num_rows == 2
    assert not set(again) & ({"1"} if moment == "2" else {"1", "2"})


def test_storage_writes_nothing_at_its_former_root(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "root")
    storage.put("a", b"1")
    (tmp_path / "root").rename(tmp_path / "new")
    works: list[Callable[[], object]] = [
        lambda: storage.put("a", b"2"),
        lambda: storage.put_if("b", b"2", None),
        lambda: storage.prepare("c"),
        lambda: storage.directory("d"),
        lambda: storage.get("a"),
        lambda: list(storage.keys("")),
    ]
    for work in works:
        with pytest.raises(StorageError, match="the root .* was moved"):
            work()
    assert not (tmp_path / "root").exists()
    (tmp_path / "new").rename(tmp_path / "root")
    assert storage.get("a") == b"1"


def test_lease_without_its_file_is_lost(tmp_path: Path) -> None:
    lease = FileLease(tmp_path / "x.lock", "1/x of run r")
    lease.guard()
    (tmp_path / "x.lock").unlink()
    other = FileLease(tmp_path / "x.lock", "1/x of run r")
    with pytest.raises(StorageError, match="the lock file of 1/x of run r"):
        lease.check()
    other.check()


def test_training_with_a_moved_folder_is_ended(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    go = tmp_path / "go"

    class Followed(EventLog[Any]):
        def new(self) -> Iterator[dict[str, Any]]:
            go.touch()
            return super().new()

    program = f"until [ -e {go} ]; do sleep 0.01; done; mv {folder} {tmp_path}/new; exec sleep 600"
    child = start_child(["sh", "-c", program], name="it", log_path=tmp_path / "l")
    with pytest.raises(StorageError, match=f"the folder of it {folder} was moved"):
        follow(child, Followed(folder / "events.jsonl", object), 600.0, lambda event: None)
    assert child.poll() is not None
