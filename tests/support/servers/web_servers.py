"""A small web on loopback: sites, a search provider, servers that say anything at all, and names that lead anywhere.

Servers run in threads of their own, so that tests of both kinds and commands in other processes can use them.
"""

from __future__ import annotations

import errno
import json
import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

from aiohttp.abc import AbstractResolver, ResolveResult

from treadle.web.sockets import MeteredSocket

HTML = "text/html; charset=utf-8"
_PROBE = "/probe-of-the-test"


@dataclass(frozen=True)
class Page:
    """A site's response. `headers` are sent in addition to type and length."""

    body: str | bytes = ""
    status: int = 200
    media_type: str = HTML
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """A request to a site; names of headers are in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = b""


Route = Page | str | bytes | Callable[[Request], "Page | str | bytes"]


class Site:
    """A site: `with Site({"/": "<p>Text"}) as site: ... site.url("/")`. A path that it has not is a 404.

    Attributes:
        routes: Path, without a query -> a page, its HTML, or a function of the request. May be changed at any time.
        requests: All requests so far, in the order of their arrival.
        origin: `http://127.0.0.1:<port>`.
    """

    def __init__(
        self,
        routes: Mapping[str, Route] | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.routes: dict[str, Route] = dict(routes or {})
        self.requests: list[Request] = []
        self.host = host
        self._held: dict[str, tuple[threading.Event, threading.Event]] = {}
        self._lock = threading.Lock()
        self._probes = 0
        self._tls = tls
        self._server = _Server(self, host, port, tls)
        self.port = int(self._server.server_address[1])
        shown = f"[{host}]" if ":" in host else host
        self.origin = f"http{'s' if tls else ''}://{shown}:{self.port}"

    def url(self, path: str = "/") -> str:
        """Return the URL of a path."""
        return self.origin + path

    @property
    def paths(self) -> list[str]:
        """Paths of all requests so far."""
        return [request.path for request in self.requests]

    def hold(self, path: str) -> threading.Event:
        """Hold responses for `path` until `release`. The event is set when a request for it arrives."""
        asked = threading.Event()
        self._held[path] = (asked, threading.Event())
        return asked

    def release(self, path: str) -> None:
        """Answer all waiting and later requests for a path."""
        self._held.pop(path)[1].set()

    def connections(self) -> int:
        """Return how many connections were made so far. None is missed: they are accepted in order."""
        address = (self.host, self.port)
        with socket.create_connection(address, timeout=60) as plain, _client_end(plain, self._tls is not None) as probe:
            probe.sendall(f"GET {_PROBE} HTTP/1.0\r\n\r\n".encode())
            place = int(probe.makefile("rb").read().rpartition(b"\n")[2])
        self._probes += 1
        return place - self._probes

    def answer(self, request: Request) -> Page:
        """Return the response to a request."""
        with self._lock:
            self.requests.append(request)
        if (held := self._held.get(request.path)) is not None:
            held[0].set()
            held[1].wait()
        route = self.routes.get(request.path, Page("no such page", 404))
        said = route(request) if callable(route) else route
        return said if isinstance(said, Page) else Page(said)

    def close(self) -> None:
        """Stop; connections are refused from now on."""
        for path in list(self._held):
            self.release(path)
        self._server.stop()

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class ScriptedProvider(Site):
    """A search provider that speaks SearXNG (GET /search) and Serper (POST /search).

    Attributes:
        answers: Query -> hits, each with `title`, `url`, `snippet` and perhaps `date`. Other queries have none.
        asked: Queries so far.
        status: The status of responses; no hits are sent unless it is 200.
        refused: Queries that are refused.
    """

    def __init__(self, answers: Mapping[str, Sequence[Mapping[str, str]]] | None = None) -> None:
        super().__init__({"/search": self._search})
        self.answers: dict[str, Sequence[Mapping[str, str]]] = dict(answers or {})
        self.asked: list[str] = []
        self.status = 200
        self.refused: set[str] = set()

    def _search(self, request: Request) -> Page:
        serper = request.method == "POST"
        query = str(json.loads(request.body)["q"]) if serper else request.query["q"]
        with self._lock:
            self.asked.append(query)
        if self.status != 200:
            return Page("{}", self.status, "application/json")
        if query in self.refused:
            return Page('{"error": "not \x1b[31mthis"}', 422, "application/json")
        hits = self.answers.get(query, ())
        found: dict[str, Any] = {"query": query, "results": [_searxng(hit) for hit in hits]}
        if serper:
            found = {"searchParameters": {"q": query}, "organic": [_serper(hit) for hit in hits]}
        return Page(json.dumps(found), media_type="application/json")


def _searxng(hit: Mapping[str, str]) -> dict[str, str]:
    return {
        "title": hit["title"],
        "url": hit["url"],
        "content": hit.get("snippet", ""),
        "publishedDate": hit.get("date", ""),
    }


def _serper(hit: Mapping[str, str]) -> dict[str, str]:
    return {
        "title": hit["title"],
        "link": hit["url"],
        "snippet": hit.get("snippet", ""),
        "date": hit.get("date", ""),
    }


def _client_end(plain: socket.socket, encrypted: bool) -> socket.socket:
    return ssl._create_unverified_context().wrap_socket(plain) if encrypted else plain


class _Server(ThreadingHTTPServer):
    """The threads of a site. Connections are numbered where they are taken: in one thread, one after the other."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, site: Site, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.site = site
        self.connections = 0
        self.places: dict[Any, int] = {}
        super().__init__((host, port), _Handler)
        if tls is not None:  # hands are shaken in the thread of the connection, not where connections are taken
            self.socket = tls.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Return number a connection."""
        self.connections += 1
        self.places[client_address] = self.connections
        return True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors: clients may disconnect at any time."""

    def start(self) -> None:
        """Serve from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Serve no more."""
        if self._thread.is_alive():
            self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes: else each answer waits 40 ms for an acknowledgement
    server: _Server

    def _answer(self) -> None:
        if self.path == _PROBE:
            return self._send(Page(str(self.server.places[self.client_address]), media_type="text/plain"))
        parts = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", 0)))
        return self._send(self.server.site.answer(Request(self.command, unquote(parts.path), query, headers, body)))

    do_GET = do_POST = do_HEAD = _answer

    def _send(self, page: Page) -> None:
        content = page.body.encode() if isinstance(page.body, str) else page.body
        self.send_response(page.status)
        fixed = {"Content-Type": page.media_type, "Content-Length": str(len(content))}
        for name, value in {**fixed, **page.headers}.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Hostile:
    """A server with arbitrary responses: `with Hostile(script) as server: ... server.url`.

    Attributes:
        script: What is sent on each connection, once its request has arrived.
        requests: Number of requests so far.
        num_sent: Bytes sent so far; what the kernel buffers for a reader counts as sent.
        silent: Set when a script has sent all that it sends at once.
        ended: Set when the server stops; a script may wait for it in order to stay silent.
    """

    def __init__(self, script: Callable[[Hostile, socket.socket], None]) -> None:
        self.script = script
        self.requests = self.num_sent = 0
        self.silent = threading.Event()
        self.ended = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}/"

    def say(self, line: socket.socket, data: bytes) -> None:
        """Send all of it. Raises OSError if the other end has closed."""
        if self.ended.is_set():
            raise ConnectionAbortedError
        line.sendall(data)
        self.num_sent += len(data)

    def _take(self) -> None:
        while True:
            try:
                line, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        with line, suppress(OSError):
            asked = b""
            while b"\r\n\r\n" not in asked:
                if not (part := line.recv(1 << 16)):
                    return
                asked += part
            self.requests += 1
            self.script(self, line)

    def __enter__(self) -> Self:
        threading.Thread(target=self._take, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.ended.set()
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class World:
    """Simulates the whole Internet: sockets of `make_socket` reach servers here, whichever address they connect to.

    Attributes:
        servers: (address, port) -> port here, on 127.0.0.1 for an IPv4 address and on ::1 for an IPv6 one.
            Nothing else can be reached.
        connected: Addresses connected to so far.
    """

    def __init__(self, servers: Mapping[tuple[str, int], int] | None = None) -> None:
        self.servers = dict(servers or {})
        self.connected: list[tuple[str, int]] = []

    def make_socket(self, family: int, kind: int, protocol: int) -> MeteredSocket:
        """Make sockets for a Fetcher."""
        world, home = self, "::1" if family == socket.AF_INET6 else "127.0.0.1"

        class Detour(MeteredSocket):
            def connect(self, address: Any) -> None:
                place = (str(address[0]), int(address[1]))
                world.connected.append(place)
                if place not in world.servers:
                    raise OSError(errno.ENETUNREACH, "not of this world")
                super().connect((home, world.servers[place]))

        return Detour(family, kind, protocol)


class Names(AbstractResolver):
    """A resolver for a test: host -> its addresses for the first lookup, the second, ...

    The last answer is repeated; other names do not exist.
    """

    def __init__(self, answers: Mapping[str, Sequence[Sequence[str]]]) -> None:
        self.answers = {host: list(answers[host]) for host in answers}
        self.asked: list[str] = []

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the next answer for a name."""
        self.asked.append(host)
        if host not in self.answers:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        left = self.answers[host]
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in (left.pop(0) if len(left) > 1 else left[0])
        ]

    async def close(self) -> None:
        """Nothing is held."""
