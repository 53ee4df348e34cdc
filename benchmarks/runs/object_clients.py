"""Compare two object store clients against moto on loopback: supported operations and cost per request.

    python -m benchmarks.runs.object_clients obstore
    python -m benchmarks.runs.object_clients s3fs        # in an environment with s3fs, moto[s3], flask and flask-cors

The server is another process, so CPU is that of the client. Results: `docs/decisions/0004-object-store-client.md`.
"""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from datetime import timedelta
from typing import Any

BUCKET = "clients"
SERVER = """
import logging, sys
logging.getLogger("werkzeug").setLevel(logging.ERROR)
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
FILE_MIB = 64
REQUEST_S = 30


class Obstore:
    """Client based on obstore."""

    def __init__(self, url: str, request_s: int = REQUEST_S) -> None:
        import obstore
        from obstore.store import S3Store

        self._api: Any = obstore
        self._store = S3Store(
            BUCKET,
            endpoint=url,
            client_options={"allow_http": True, "timeout": f"{request_s}s", "connect_timeout": "3s"},
            retry_config={"max_retries": 2, "retry_timeout": timedelta(seconds=60)},
        )

    def put(self, key: str, data: bytes) -> None:
        """Replace an object."""
        self._api.put(self._store, key, data, use_multipart=False)

    def create(self, key: str, data: bytes) -> None:
        """Create an object; fail if it exists."""
        self._api.put(self._store, key, data, mode="create", use_multipart=False)

    def replace(self, key: str, data: bytes, version: str) -> None:
        """Replace an object if it has that version."""
        self._api.put(self._store, key, data, mode={"e_tag": version}, use_multipart=False)

    def version(self, key: str) -> str:
        """Return the ETag of an object."""
        return str(self._api.head(self._store, key)["e_tag"])

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """Return an object, or a part of it."""
        if end is None:
            return bytes(self._api.get(self._store, key).bytes())
        return bytes(self._api.get_range(self._store, key, start=start, end=end))

    def count(self, prefix: str) -> int:
        """Return the number of objects."""
        return sum(len(batch) for batch in self._api.list(self._store, prefix))

    def upload(self, key: str, path: str) -> None:
        """Upload a large file."""
        with open(path, "rb") as file:
            self._api.put(self._store, key, file, chunk_size=8 << 20, max_concurrency=4)


class S3fs:
    """Client based on s3fs, with the methods of `Obstore`."""

    def __init__(self, url: str, request_s: int = REQUEST_S) -> None:
        import s3fs  # type: ignore[import-not-found,unused-ignore]

        config = {"read_timeout": request_s, "connect_timeout": 3, "retries": {"max_attempts": 2}}
        self._fs: Any = s3fs.S3FileSystem(
            endpoint_url=url, config_kwargs=config, use_listings_cache=False, skip_instance_cache=True
        )

    def put(self, key: str, data: bytes) -> None:
        """Replace an object."""
        self._fs.pipe_file(f"{BUCKET}/{key}", data)

    def create(self, key: str, data: bytes) -> None:
        """Create an object; fail if it exists."""
        self._fs.pipe_file(f"{BUCKET}/{key}", data, mode="create")

    def replace(self, key: str, data: bytes, version: str) -> None:
        """Replace an object if it has that version."""
        self._fs.pipe_file(f"{BUCKET}/{key}", data, IfMatch=version)

    def version(self, key: str) -> str:
        """Return the ETag of an object."""
        return str(self._fs.info(f"{BUCKET}/{key}")["ETag"])

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """Return an object, or a part of it."""
        return bytes(self._fs.cat_file(f"{BUCKET}/{key}", start=start, end=end))

    def count(self, prefix: str) -> int:
        """Return the number of objects."""
        return len(self._fs.find(f"{BUCKET}/{prefix}"))

    def upload(self, key: str, path: str) -> None:
        """Upload a large file."""
        self._fs.put_file(path, f"{BUCKET}/{key}")


Client = Obstore | S3fs


def attempt(what: str, act: Callable[[], object]) -> None:
    """Print the outcome of an operation and its duration."""
    began = time.monotonic()
    try:
        act()
        outcome = "succeeded"
    except Exception as error:  # noqa: BLE001 - the type of the exception is the result
        outcome = f"{type(error).__module__}.{type(error).__name__}"
    print(f"{what}: {outcome}, {time.monotonic() - began:.2f} s")


def cost(what: str, act: Callable[[int], object], times: int) -> None:
    """Print CPU time of this process and wall time, per operation."""
    cpu, began = time.process_time(), time.monotonic()
    for number in range(times):
        act(number)
    cpu_ms, wall_ms = (
        1e3 * (end - start) / times for end, start in ((time.process_time(), cpu), (time.monotonic(), began))
    )
    print(f"{what}: {cpu_ms:.2f} ms CPU, {wall_ms:.1f} ms wall")


def measure(client: Client) -> None:
    """Measure conditional writes, then costs."""
    attempt("create", lambda: client.create("one", b"1"))
    attempt("create an existing object", lambda: client.create("one", b"2"))
    version = client.version("one")
    attempt("replace", lambda: client.replace("one", b"3", version))
    attempt("replace with a stale version", lambda: client.replace("one", b"4", version))
    attempt("get a missing object", lambda: client.get("absent"))
    data = os.urandom(4096)
    cost("put 4 KiB", lambda number: client.put(f"small/{number}", data), 200)
    cost("get 4 KiB", lambda number: client.get(f"small/{number}"), 200)
    cost("list 200 objects", lambda _: client.count("small/"), 10)
    with tempfile.NamedTemporaryFile() as file:
        for _ in range(FILE_MIB):
            file.write(os.urandom(1 << 20))
        file.flush()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        cost(f"upload {FILE_MIB} MiB", lambda _: client.upload("large", file.name), 1)
        print(f"peak memory: {before} MiB before, {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} after")
    cost("read 4 MiB of it", lambda number: client.get("large", number << 22, (number + 1) << 22), FILE_MIB // 4)


def main(name: str) -> None:
    """Measure one client."""
    os.environ.update(AWS_ACCESS_KEY_ID="benchmark", AWS_SECRET_ACCESS_KEY="benchmark", AWS_REGION="us-east-1")
    kind = {"obstore": Obstore, "s3fs": S3fs}[name]
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as server:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        urllib.request.urlopen(urllib.request.Request(f"{url}/{BUCKET}", method="PUT")).close()
        began, cpu = time.monotonic(), time.process_time()
        client = kind(url)
        client.put("first", b"1")
        print(f"import and first put: {time.process_time() - cpu:.2f} s CPU, {time.monotonic() - began:.2f} s wall")
        measure(client)
        server.kill()
    attempt("a closed port, 2 retries", lambda: kind("http://127.0.0.1:9").get("one"))
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(20)
        there = f"http://127.0.0.1:{silent.getsockname()[1]}"
        attempt("a silent server, 2 s a request, 2 retries", lambda: kind(there, request_s=2).get("one"))


if __name__ == "__main__":
    main(sys.argv[1])
