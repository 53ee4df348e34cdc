"""A server in front of a model that holds completions back until a test lets them through."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_EVERYTHING = 1_000_000


class Gate:
    """Requests with a seed wait for a ticket each, in order; what asks for the model, and preflights, pass.

    Attributes:
        url: Base URL, ending in `/v1`.
    """

    def __init__(self, behind: str) -> None:
        self._behind = urlsplit(behind)
        self._lock = threading.Condition()
        self._arrived = 0
        self._admitted = 0
        self.url = ""

    def let_through(self, tickets: int) -> None:
        """Issue this number of further tickets."""
        with self._lock:
            self._admitted += tickets
            self._lock.notify_all()

    def open(self) -> None:
        """Hold nothing back any more."""
        self.let_through(_EVERYTHING)

    def close(self) -> None:
        """Hold everything back from now on."""
        with self._lock:
            self._admitted = min(self._admitted, self._arrived)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a ticket."""
        with self._lock:
            return max(0, self._arrived - self._admitted)

    @property
    def is_blocked(self) -> bool:
        """Return whether all tickets are used and a caller waits."""
        return self.num_waiting > 0

    def wait(self) -> None:
        """Take a ticket."""
        with self._lock:
            number, self._arrived = self._arrived, self._arrived + 1
            self._lock.wait_for(lambda: number < self._admitted)

    def forward(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        """Ask the model."""
        connection = http.client.HTTPConnection(self._behind.hostname or "", self._behind.port or 80)
        with suppress(OSError):
            connection.request(method, path, body, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            return reply.status, reply.read()
        return 502, b"{}"


@contextmanager
def gate(behind: str) -> Iterator[Gate]:
    """Yield a closed gate before the model at a base URL."""
    made = Gate(behind)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(None)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if json.loads(body).get("seed"):
                made.wait()
            self._answer(body)

        def _answer(self, body: bytes | None) -> None:
            status, content = made.forward(self.command, self.path, body)
            with suppress(OSError):  # Who asked may have been killed.
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        made.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        try:
            yield made
        finally:
            made.open()
            server.shutdown()
