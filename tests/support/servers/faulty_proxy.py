"""A proxy before an object store that fails on command, request by request."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import urlsplit

Fault = Literal["500 before", "500 after", "drop before", "drop after", "silence", "409 before"]
"""`after`: the server does what was asked, and its answer is lost. 409: another conditional put is under way."""
FAULTS: tuple[Fault, ...] = ("500 before", "500 after", "drop before", "drop after")
Plan = Callable[[int, str], Fault | None]
"""Number of the request from 0, its method -> what goes wrong with it."""


class FaultyProxy:
    """A running proxy; `plan` may be changed at any time, `seen` are the methods of all requests so far."""

    def __init__(self) -> None:
        self.plan: Plan = lambda number, method: None
        self.seen: list[str] = []
        self.url = ""
        self.ended = threading.Event()
        self._lock = threading.Lock()

    def next_fault(self, method: str) -> Fault | None:
        """Count a request."""
        with self._lock:
            self.seen.append(method)
            return self.plan(len(self.seen) - 1, method)


@contextmanager
def faulty_proxy(upstream: str) -> Iterator[FaultyProxy]:
    """Run a proxy before the server at `upstream` for the length of a block."""
    proxy, host = FaultyProxy(), urlsplit(upstream).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fault = proxy.next_fault(self.command)
            self.close_connection = fault in ("drop before", "drop after", "silence")
            if fault == "silence":
                proxy.ended.wait()
            if fault in ("drop before", "silence"):
                return
            status, headers, content = (500, [], b"") if fault in ("500 before", "409 before") else self._ask(body)
            if fault == "drop after":
                return
            self.send_response(int(fault[:3]) if fault else status)
            for name, value in headers:
                self.send_header(name, value)
            if self.command != "HEAD":
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _pass

        def _ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
            connection = http.client.HTTPConnection(host, timeout=60)
            try:
                connection.request(self.command, self.path, body, dict(self.headers))
                answer = connection.getresponse()
                content = answer.read()
            finally:
                connection.close()
            skipped = {"connection", "transfer-encoding", "server", "date"}
            skipped |= set() if self.command == "HEAD" else {"content-length"}
            return answer.status, [item for item in answer.getheaders() if item[0].lower() not in skipped], content

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    proxy.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.ended.set()
        server.shutdown()
        server.server_close()
