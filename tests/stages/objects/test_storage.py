"""A root in an object store promises what a local one does: whole objects, decided races, published folders."""

from __future__ import annotations

import io
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.servers.faulty_proxy import FAULTS, Fault, FaultyProxy, faulty_proxy
from support.servers.object_server import BUCKET, ObjectServer, in_environment

from treadle.core.errors import ConfigError, StorageError
from treadle.core.store.object_storage import ObjectStorage, RetryPolicy
from treadle.core.store.roots import Storage, open_storage
from treadle.core.store.storage import LocalStorage

TRIED = FAULTS if os.environ.get("TREADLE_FAULT_STRIDE") == "1" else FAULTS[::3]
ONCE = RetryPolicy(retries=0)


@pytest.fixture(params=["local", "object"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return open_storage(tmp_path / "root" if request.param == "local" else request.getfixturevalue("object_root"))


def test_object_is_replaced_only_if_it_matches_the_expected_version(storage: Storage) -> None:
    assert storage.put_if("a/b", b"1", None)
    assert not storage.put_if("a/b", b"2", None)
    assert not storage.put_if("a/b", b"2", b"0")
    assert storage.put_if("a/b", b"2", b"1")
    assert not storage.put_if("a/c", b"2", b"1")
    assert storage.get("a/b") == b"2"
    assert list(storage.keys("a")) == ["a/b"]
    storage.delete("a")
    storage.delete("a")
    assert storage.get("a/b") is None
    assert not storage.exists("a/b")


def test_one_of_concurrent_writers_wins_each_round(storage: Storage) -> None:
    """A counter that 4 threads raise by compare and set misses none and counts none twice."""
    start = threading.Barrier(4)

    def raise_it(name: int) -> int:
        start.wait()
        won = 0
        for _ in range(4):
            while True:
                before = storage.get("counter")
                count = int(before.split()[0]) if before else 0
                if storage.put_if("counter", f"{count + 1} by {name}".encode(), before):
                    won += 1
                    break
        return won

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(raise_it, range(4))) == 16
    assert (storage.get("counter") or b"").split()[0] == b"16"


def test_one_of_concurrent_creators_wins(storage: Storage) -> None:
    start = threading.Barrier(8)

    def create(number: int) -> bool:
        start.wait()
        return storage.put_if("one", str(number).encode(), None)

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(create, range(8)))
    assert won.count(True) == 1
    assert storage.get("one") == str(won.index(True)).encode()


def test_folders_and_keys_are_listed_and_deleted_by_whole_names(storage: Storage) -> None:
    for key in ("runs/r1/run.json", "runs/r1/records/1/rollouts@base.json", "runs/r10/run.json", "runs.json"):
        storage.put(key, b"x")
    assert storage.names("runs") == ["r1", "r10"]
    assert storage.names("nothing") == []
    assert sorted(storage.keys("runs/r1")) == ["runs/r1/records/1/rollouts@base.json", "runs/r1/run.json"]
    storage.delete("runs/r1")
    assert list(storage.keys("runs")) == ["runs/r10/run.json"]
    assert storage.exists("runs.json")


@pytest.mark.parametrize("key", ["../x", "/etc/passwd", "a/../../x", "a\0b"])
def test_key_cannot_escape_the_root(storage: Storage, key: str) -> None:
    for act in (lambda: storage.put(key, b""), lambda: storage.get(key), lambda: storage.delete(key)):
        with pytest.raises(StorageError, match="is not a key inside of"):
            act()


def test_published_folder_has_a_manifest_and_is_not_published_again(storage: Storage) -> None:
    for content, published in ((b"first", True), (b"second", False)):
        staged = storage.prepare("artifacts/things")
        (staged / "data").write_bytes(content)
        (staged / "manifest").write_bytes(content)
        assert storage.publish(staged, "artifacts/things/1", "manifest") is published
        assert not staged.exists()
    assert storage.get("artifacts/things/1/data") == storage.get("artifacts/things/1/manifest") == b"first"
    staged = storage.prepare("artifacts/things")
    (staged / "manifest").write_bytes(b"third")
    assert storage.publish(staged, "artifacts/things/1", "manifest", replace=True)
    assert storage.get("artifacts/things/1/manifest") == b"third"


def test_large_file_is_uploaded_in_parts_and_read_in_ranges(storage: Storage) -> None:
    staged = storage.prepare("artifacts/things")
    table = pa.table({"number": range(30_000), "noise": [os.urandom(400) for _ in range(30_000)]})
    pq.write_table(table, staged / "part.parquet", row_group_size=1_000)
    size = (staged / "part.parquet").stat().st_size
    assert size > 8 * 1024 * 1024
    (staged / "manifest").write_bytes(b"{}")
    storage.publish(staged, "artifacts/things/1", "manifest")
    with storage.open("artifacts/things/1/part.parquet") as file:
        assert file.seek(0, io.SEEK_END) == size
        file.seek(0)
        parquet = pq.ParquetFile(file, pre_buffer=False)
        assert parquet.read_row_group(17).column("number").to_pylist() == list(range(17_000, 18_000))
        assert parquet.read().equals(table)
    with pytest.raises(StorageError):
        storage.open("artifacts/things/1/absent")


def test_object_replaced_during_a_read_is_never_read_as_a_mixture(object_root: str) -> None:
    storage = open_storage(object_root)
    storage.put("x", b"1" * 9_000_000)
    with storage.open("x") as file:
        assert file.read(10) == b"1" * 10
        storage.put("x", b"2" * 9_000_000)
        with pytest.raises(StorageError, match="other processes keep replacing it"):
            file.read()


@pytest.mark.parametrize(
    "root", ["gs://bucket/x", "https://host/bucket", "s3://", "s3://b/../x", "s3://UP~PER/x", "s3://bucket/a//b"]
)
def test_rejects_an_invalid_root(root: str) -> None:
    with pytest.raises(ConfigError):
        open_storage(root)


def test_url_converted_through_path_is_the_same_root(object_root: str) -> None:
    assert (
        open_storage(Path(object_root)).location("x") == open_storage(object_root).location("x") == object_root + "/x"
    )
    assert isinstance(open_storage("s3"), LocalStorage)


@pytest.mark.parametrize(
    "environment, root, message",
    [
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, f"s3://{BUCKET}/x", "http://127.0.0.1:9 does not answer; check"),
        ({}, "s3://no-such-bucket/x", "there is no bucket no-such-bucket; create it"),
        ({"AWS_ENDPOINT_URL": "host:9000"}, f"s3://{BUCKET}/x", "must be the address of a server"),
        ({"AWS_ENDPOINT_URL": "http://me:secret@host"}, f"s3://{BUCKET}/x", "must be the address of a server"),
    ],
)
def test_unreachable_storage_is_reported_in_one_line(
    objects: ObjectServer, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], root: str, message: str
) -> None:
    monkeypatch.setattr("treadle.core.store.object_storage.RETRY_POLICY", ONCE)
    with in_environment({**objects.environment, **environment}):
        for act in ACTS.values():
            with pytest.raises((StorageError, ConfigError), match=message) as error:
                act(open_storage(root))
            assert "\n" not in str(error.value) and "secret" not in str(error.value)


ACTS: dict[str, Callable[[Storage], object]] = {
    "put": lambda storage: storage.put("x", b"new"),
    "create": lambda storage: storage.put_if("created", b"new", None),
    "replace": lambda storage: storage.put_if("x", b"new", b"old"),
    "get": lambda storage: storage.get("x"),
    "list": lambda storage: list(storage.keys("")),
}


@pytest.fixture
def proxy(objects: ObjectServer, object_root: str) -> Iterator[FaultyProxy]:
    with faulty_proxy(objects.url) as started, in_environment({"AWS_ENDPOINT_URL": started.url}):
        yield started


@pytest.mark.parametrize("fault", TRIED)
@pytest.mark.parametrize("act", [*ACTS, "delete", "publish"])
def test_failing_request_leaves_the_old_or_the_new_object(
    proxy: FaultyProxy, object_root: str, monkeypatch: pytest.MonkeyPatch, act: str, fault: Fault
) -> None:
    """Every request of every operation, without retries."""
    monkeypatch.setattr("treadle.core.store.object_storage.RETRY_POLICY", RetryPolicy(retries=0))
    monkeypatch.setitem(ACTS, "delete", lambda storage: storage.delete("x"))
    monkeypatch.setitem(ACTS, "publish", publish)
    for number in range(20):
        storage = open_storage(f"{object_root}/{number}")
        storage.put("x", b"old")
        first = len(proxy.seen)
        proxy.plan = lambda n, _, at=first + number: fault if n == at else None  # type: ignore[misc]
        failed = fails(ACTS[act], storage)
        reached = len(proxy.seen) > first + number
        proxy.plan = lambda _number, _method: None
        assert failed is reached or act in ("delete", "create", "replace")
        assert storage.get("x") in (b"old", b"new", None if act == "delete" else b"old")
        if storage.exists("a/manifest"):
            assert storage.get("a/data") == b"data"
        assert not fails(ACTS[act], storage), "it does not work afterwards"
        if not reached:
            return
    raise AssertionError("more requests than expected")


def test_unresponsive_endpoint_times_out(proxy: FaultyProxy, object_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy.plan = lambda number, _: "silence" if number == 1 else None
    storage = open_storage(object_root)
    storage.put("x", b"old")
    monkeypatch.setattr("treadle.core.store.object_storage.RETRY_POLICY", RetryPolicy(request_s=0.5, retries=0))
    assert fails(ACTS["put"], open_storage(object_root))
    assert storage.get("x") == b"old"


def publish(storage: Storage) -> None:
    staged = storage.prepare("work")
    (staged / "data").write_bytes(b"data")
    (staged / "manifest").write_bytes(b"manifest")
    storage.publish(staged, "a", "manifest")


def fails(act: Callable[[Storage], object], storage: Storage) -> bool:
    try:
        act(storage)
    except StorageError as error:
        assert "\n" not in str(error)
        assert re.search("keeps answering 500|does not answer", str(error))
        return True
    return False


@pytest.mark.parametrize("fault", FAULTS)
def test_transient_fault_goes_unnoticed(proxy: FaultyProxy, object_root: str, fault: Fault) -> None:
    """Even if only the response was lost: a conditional put then finds its own object."""
    storage = open_storage(object_root)
    proxy.plan = lambda number, _: fault if number % 3 else None
    assert storage.put_if("x", b"1", None)
    assert storage.put_if("x", b"2", b"1")
    assert storage.get("x") == b"2"
    assert not storage.put_if("x", b"3", b"1")


def test_put_that_collides_with_a_failed_put_is_retried(proxy: FaultyProxy, object_root: str) -> None:
    storage = open_storage(object_root)
    for expected, new in ((None, b"1"), (b"1", b"2")):
        first = len(proxy.seen)
        proxy.plan = (
            lambda n, method, first=first: (  # type: ignore[misc]
                "409 before" if method == "PUT" and "PUT" not in proxy.seen[first:n] else None
            )
        )
        assert storage.put_if("x", new, expected)
        assert storage.get("x") == new


def test_missing_client_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore.store", None)
    with pytest.raises(ConfigError, match=re.escape("pip install 'treadle[s3]'")):
        ObjectStorage("bucket")
