"""Values that a run keeps by key: the first value of a key wins, and later writers get it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.runs.counting_stage import counting

from treadle.core.errors import RunError, StorageError
from treadle.core.runs.execute import execute
from treadle.core.runs.locked_config import create_or_open_run
from treadle.core.runs.run import Run
from treadle.core.runs.stage import StageContext
from treadle.core.store.keyed_store import KeyedStore
from treadle.core.store.storage import LocalStorage

KEY = "0123456789abcdef" * 2
OTHER = "f" * 32

_ADDER = """
import sys
from treadle.core.store.keyed_store import KeyedStore
from treadle.core.store.storage import LocalStorage

store = KeyedStore(LocalStorage(sys.argv[1]), "store")
sys.stdin.read(1)
for number in range(50):
    key = f"{number:032x}"
    print(key, store.add(key, sys.argv[2].encode()).decode())
"""


def store_in(folder: Path) -> KeyedStore:
    return KeyedStore(LocalStorage(folder), "runs/r/store/web")


def test_added_value_exists_and_others_do_not(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    assert store.get(KEY) is None
    assert store.add(KEY, b"value") == b"value"
    assert store_in(tmp_path).get(KEY) == b"value"
    assert store.get(OTHER) is None
    assert (tmp_path / "runs/r/store/web/012" / KEY).read_bytes() == b"value"


def test_first_value_stays_and_later_writers_get_it(tmp_path: Path) -> None:
    assert store_in(tmp_path).add(KEY, b"first") == b"first"
    assert store_in(tmp_path).add(KEY, b"second") == b"first"
    assert store_in(tmp_path).get(KEY) == b"first"


def test_two_processes_writing_the_same_keys_get_the_same_values(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _ADDER, str(tmp_path)]
    adders = [
        subprocess.Popen([*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for name in "ab"
    ]
    told: list[str] = ["", ""]

    def start(index: int) -> None:
        told[index] = adders[index].communicate("\n")[0]

    threads = [threading.Thread(target=start, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [adder.returncode for adder in adders] == [0, 0]
    assert told[0] == told[1]
    assert len(told[0].splitlines()) == 50


def test_keys_are_listed_sorted_without_other_files(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    assert list(store.keys()) == []
    keys = [f"{number:x}".rjust(4, "0") * 8 for number in (77, 3, 4000, 500)]
    for key in keys:
        store.add(key, b"")
    (tmp_path / "runs/r/store/web/notes.txt").write_text("mine")
    (tmp_path / "runs/r/store/web/000" / OTHER).write_bytes(b"in another's folder")
    (tmp_path / "runs/r/store/web/000/.tmp-0123456789abcdef0123456789abcdef").write_bytes(b"half")
    assert list(store.keys()) == sorted(keys)


@pytest.mark.parametrize("key", ["", "0" * 31, "0" * 33, "A" * 32, "../" + "0" * 29, "0" * 31 + "/", "0" * 32 + "\n"])
def test_invalid_key_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match="32 hex digits"):
        store_in(tmp_path).add(key, b"x")
    with pytest.raises(ValueError, match="32 hex digits"):
        store_in(tmp_path).get(key)
    assert list(tmp_path.rglob("*")) == []


def test_full_disk_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(StorageError, match="there is a file where a folder is expected"):
        store_in(tmp_path).add(KEY, b"x")


def test_stage_uses_the_stores_of_its_run_and_force_keeps_their_contents(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "r1", {}, {})
    seen: list[bytes | None] = []
    instance = counting()

    def body(context: StageContext) -> Mapping[str, Any]:
        seen.append(context.store("web").get(KEY))
        context.store("web").add(KEY, b"met")
        return instance.stage.run(context)

    stored = replace(instance, stage=replace(instance.stage, run=body))
    execute(stored, run)
    execute(stored, run, force=True)
    assert seen == [None, b"met"]
    assert run.store("web").get(KEY) == b"met"
    assert run.store("other").get(KEY) is None


def test_run_with_stored_values_accepts_no_other_config(tmp_path: Path) -> None:
    Run.create(tmp_path, "r1", {"a": 1}, {"a": 1}).store("web").add(KEY, b"met")
    with pytest.raises(RunError, match="a: 1 -> 2"):
        create_or_open_run(tmp_path, "r1", {"a": 2}, {"a": 2})
