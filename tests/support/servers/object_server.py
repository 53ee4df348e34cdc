"""An S3 server as a process (moto), and machines that differ in nothing but their working folder."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from unittest.mock import patch

# moto looks at the condition of a put and then stores it, with other requests in between: one at a time.
_PROGRAM = """
import logging, sys, threading
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
logging.getLogger("werkzeug").setLevel(logging.ERROR)
application, lock = DomainDispatcherApplication(create_backend_app), threading.Lock()

def one_at_a_time(environ, start_response):
    with lock:
        return list(application(environ, start_response))

server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_port, flush=True)
sys.stdin.read()
"""
BUCKET = "treadle-tests"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "tests-only", "AWS_SECRET_ACCESS_KEY": "tests-only", "AWS_REGION": "us-east-1"}
_roots = itertools.count(1)


class ObjectServer:
    """A running server with one bucket."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process, self.url = process, url

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables that a process needs to reach it."""
        return {**CREDENTIALS, "AWS_ENDPOINT_URL": self.url}

    def new_root(self) -> str:
        """Return an unused root."""
        return f"s3://{BUCKET}/{os.getpid()}/root-{next(_roots)}"


@contextmanager
def object_server() -> Iterator[ObjectServer]:
    """Run a server for the length of a block."""
    environment = {**os.environ, **CREDENTIALS}
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    with process:
        assert process.stdout is not None
        try:
            url = f"http://127.0.0.1:{int(process.stdout.readline())}"
            urllib.request.urlopen(urllib.request.Request(f"{url}/{BUCKET}", method="PUT"), timeout=60).close()
            yield ObjectServer(process, url)
        finally:
            process.kill()


@contextmanager
def in_environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of this process for the length of a block."""
    with patch.dict(os.environ, values):
        yield
