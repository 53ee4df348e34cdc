"""A run's web record on an object root: one value per key for all machines, and records read from the root."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.rollouts.rollouts_bench import ANSWER, Bench, server
from support.servers.object_server import ObjectServer
from support.servers.scripted_server import Item, RecordedRequest
from support.web.web_entries import page_of, search_of
from support.web.web_rollouts import SmallWeb, replaying, said, searching

from treadle.core.errors import ArtifactError
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.store.keyed_store import KeyedStore
from treadle.core.store.object_storage import ObjectStorage
from treadle.core.store.roots import open_storage
from treadle.web.record.folder import open_record, record_digest
from treadle.web.record.stored_entries import entries_of, packed
from treadle.web.record.table import write_record


def test_two_machines_writing_the_same_keys_read_the_same_values(object_root: str, tmp_path: Path) -> None:
    first = Run.create(object_root, "r1", {}, {}).store("web")
    storage = open_storage(object_root)
    assert isinstance(storage, ObjectStorage)
    bucket, _, prefix = object_root.removeprefix("s3://").partition("/")
    second = KeyedStore(ObjectStorage(bucket, prefix, work=tmp_path / "other"), "runs/r1/store/web")
    keys = [os.urandom(16).hex() for _ in range(10)]

    def add(store: KeyedStore, value: bytes) -> list[bytes]:
        return [store.add(key, value) for key in keys]

    with ThreadPoolExecutor(2) as threads:
        told = list(threads.map(add, (first, second), (b"1", b"2")))
    assert told[0] == told[1]
    assert list(first.keys()) == sorted(keys)
    assert [second.get(key) for key in keys] == told[0]
    assert second.get("0" * 32) is None


def test_web_record_is_read_from_the_object_root_before_this_machine(
    object_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_CACHE", str(tmp_path / "cache"))
    run = Run.create(object_root, "r1", {}, {})
    entries = [*(search_of(f"query {number}") for number in range(5)), page_of("http://site.test/")]
    for entry in entries:
        run.store("web").add(entry.key, packed(entry))
    met = ((entry, None) for entry in entries_of(run.store("web")))
    ref = write_record(run.storage, met, made_by="", work="work")
    location = f"{object_root}/{ref.folder}"
    record = open_record(location)
    assert record.location == location
    assert record.digest == record_digest(location) == ref.digest
    assert [record.get(entry.key) for entry in entries] == entries
    run.storage.delete(f"{ref.folder}/data/part-00000.parquet")
    # As a Path makes of it in a configuration.
    assert open_record(Path(location)).get(entries[0].key) == entries[0]
    with pytest.raises(ArtifactError, match=rf"{object_root} is no web record"):
        open_record(object_root)
    run.storage.delete(f"{ref.folder}/artifact.json")
    assert record_digest(Path(location)) == ref.digest, "what was made with it can be known as made"
    with pytest.raises(ArtifactError, match="has no artifact.json"):
        open_record(location)


FOUND = {
    "moss": {"/moss": "<p>Moss is green.", "/fern": "<p>Ferns have fronds."},
    "fern": {"/fern": "<p>Ferns have fronds.", "/gone": "It was here."},
}


def searches(request: RecordedRequest) -> Item:
    number = said(request).count("<result>")
    return f"<think>t</think><search>{('moss', 'fern')[number]}</search>" if number < 2 else ANSWER


def part_of(bench: Bench, folder: str) -> bytes:
    return bench.run.storage.get(f"{folder}/data/part-00000.parquet") or b""


async def test_object_store_rollouts_replay_byte_for_byte(
    object_root: str, objects: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def use_new_machine(name: str) -> None:
        monkeypatch.setenv("TREADLE_CACHE", str(tmp_path / name / "cache"))
        monkeypatch.setenv("TREADLE_WORK", str(tmp_path / name / "work"))

    texts = [f"Question {number}?" for number in range(4)]
    async with server(searches) as scripted:
        use_new_machine("first")
        bench = Bench(Path(object_root), texts)
        with SmallWeb(FOUND) as web:
            environment = searching(web.settings())
            record = await bench.make(scripted.url, environment=environment, options={"shards": 2})
            num_asked = web.num_asked
        rows, folder = bench.rows(record), record.outputs["rollouts"].folder
        expected = part_of(bench, folder)
        assert num_asked == 2 + 3 and len(expected) > 1000
        assert all("Ferns have fronds." in row["text"] and "It was here." in row["text"] for row in rows)

        # Another machine remakes them from the run's record, without any live service.
        use_new_machine("second")
        instance = bench.instance(scripted.url, environment=environment)
        forced = await asyncio.to_thread(execute, instance, Run.open(object_root, "r"), force=True)
        assert part_of(bench, forced.outputs["rollouts"].folder) == expected

        met = ((entry, None) for entry in entries_of(bench.run.store("web")))
        kept = write_record(bench.run.storage, met, made_by="", work="work")
        replay = searching(replaying(Path(f"{object_root}/{kept.folder}")))
        for root in (objects.new_root(), str(tmp_path / "here")):
            use_new_machine(root.rpartition("/")[2])
            again = Bench(Path(root), texts)
            replayed = await again.make(scripted.url, environment=replay)
            assert part_of(again, replayed.outputs["rollouts"].folder) == expected
            assert list(again.run.store("web").keys()) == []
