"""A retrieval service on loopback, in threads, that counts its queries and can hold some of them for ever."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class CountingSearch:
    """Answers each query with one document about it.

    Attributes:
        asked: All queries, in the order in which they came.
        answered: Queries whose answer was sent.
        held: Queries that are answered only once `release` is set.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answered: list[str] = []
        self.held: set[str] = set()
        self.release = threading.Event()
        self.lock = threading.Lock()
        self.on_query: Any = None
        self.url = ""

    def find(self, query: str) -> list[dict[str, Any]]:
        with self.lock:
            self.asked.append(query)
        if self.on_query is not None:
            self.on_query()
        if query in self.held:
            self.release.wait()
        with self.lock:
            self.answered.append(query)
        return [{"id": query, "contents": f"{query}\nThe value of {query} is {len(query)}."}]


@contextmanager
def serving(search: CountingSearch) -> Iterator[CountingSearch]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._say({"fingerprint": "counting"})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            queries = [body["query"]] if "query" in body else body["queries"]
            found = [search.find(query) for query in queries]
            scores = [[1.0] * len(documents) for documents in found]
            documents: Any = found[0] if "query" in body else found
            self._say([documents, scores[0] if "query" in body else scores] if body.get("return_score") else documents)

        def _say(self, value: Any) -> None:
            data = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *arguments: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    search.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield search
    finally:
        search.release.set()
        server.shutdown()
        thread.join()
        server.server_close()
