"""Pages from servers that nobody knows: bounded in addresses, hops, bytes and time. Nothing is unpacked or parsed here.

See `docs/behaviour/web.md`, "Fetching pages".
"""

from __future__ import annotations

import asyncio
import codecs
import ipaddress
import logging
import os
import re
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

import aiohttp
from aiohttp.abc import AbstractResolver
from aiohttp.http_exceptions import HttpProcessingError, PayloadEncodingError
from multidict import CIMultiDictProxy
from yarl import URL

from treadle.agent.web.addresses import AddressRule
from treadle.agent.web.config import WebSettings
from treadle.agent.web.names import FoundNames, Lookups, SystemNames
from treadle.agent.web.once import warn_once
from treadle.agent.web.slots import PageTime, Slots
from treadle.agent.web.sockets import Exchange, Guard, MeteredSocket, exchange
from treadle.agent.web.turns import site_of
from treadle.agent.web.types import Fetched, Unfetchable
from treadle.agent.web.urls import checked_url
from treadle.core.llm.client import raise_open_file_limit
from treadle.retriever.client import SearchUnavailable

MAX_REDIRECTS = 5
PDF = "application/pdf"
MEDIA_TYPES = frozenset(
    {
        "text/html",
        "application/xhtml+xml",
        "text/plain",
        "text/markdown",
        "application/json",
        "application/xml",
        "text/xml",
        PDF,
    }
)
"""Pages that are read."""
LARGE_BYTES = 1024 * 1024
"""Beyond this a body needs a place among the large ones."""
NUM_LARGE, NUM_LARGE_OF_SITE = 16, 4
ENCODINGS = {"": "", "identity": "", "gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate"}
"""Content encodings that are read -> their names in `Fetched`."""

_UNTYPED = frozenset({"", "application/octet-stream", "binary/octet-stream", "application/x-pdf"})
"""Types that say nothing: the first bytes are looked at."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_BUSY = frozenset({429, 500, 502, 503, 504})
_SNIFFED_BYTES = 512
_NO_PLACE = (
    "pages of the search waited for a place among those that are fetched until its time was over; allow more by "
    "fetch.max_fetches or fetch.max_per_host, or let fewer rollouts run at once"
)
_PAUSE_S = 0.5
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([A-Za-z0-9][A-Za-z0-9_.:+-]{0,39})", re.IGNORECASE)

_log = logging.getLogger(__name__)


class _MayPass(Unfetchable):
    """A failure that another try may not meet."""


class Fetcher:
    """Fetches pages. Used between `open` and `close`, inside one event loop.

    Args:
        settings: Limits; `fetch.allowed_networks` are connected to beside the public net.
        resolver: Who says what names mean; none means the machine's own.
        make_socket: What the guard makes sockets with, once it has allowed an address.
        pause: What is waited with before another try.
    """

    def __init__(
        self,
        settings: WebSettings,
        *,
        resolver: AbstractResolver | None = None,
        make_socket: Callable[[int, int, int], MeteredSocket] = MeteredSocket,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._settings = settings
        self._guard = Guard(AddressRule(map(ipaddress.ip_network, settings.fetch.allowed_networks)), make_socket)
        self._given_resolver, self._pause = resolver, pause
        fetch = settings.fetch
        self._hosts = Slots(None, fetch.max_per_host)
        # Held until a page was read, so they bound what lies in memory; a site has a quarter of them at most.
        self._pages = Slots(fetch.max_fetches, max(fetch.max_per_host, fetch.max_fetches // 4))
        self._large = Slots(NUM_LARGE, NUM_LARGE_OF_SITE)
        self._closed = False
        self._lookups: Lookups | None = None
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Get ready; say what is out of the ordinary."""
        self._say_what_is_unusual()
        raise_open_file_limit()
        self._lookups = Lookups(self._given_resolver or SystemNames())
        fetch = self._settings.fetch
        self._session = aiohttp.ClientSession(
            # No connection is used twice, and no name's addresses are kept: each request passes the guard.
            connector=aiohttp.TCPConnector(
                resolver=FoundNames(), use_dns_cache=False, limit=0, force_close=True, socket_factory=self._guard
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=fetch.connect_timeout_s),
            trust_env=False,
            auto_decompress=False,
            headers={
                "User-Agent": fetch.user_agent,
                "Accept": "text/html, application/xhtml+xml, application/pdf, text/*;q=0.8, application/json;q=0.5",
                "Accept-Encoding": "gzip, deflate",
            },
        )
        # aiohttp asks once more by itself where a server hangs up; how often is `attempts`.
        self._session._retry_connection = False

    async def close(self) -> None:
        """Break off what is under way."""
        self._closed = True
        if self._session is not None:
            await self._session.close()
        if self._lookups is not None:
            await self._lookups.close()

    async def fetch(self, url: str, *, deadline: float, places: ExitStack | None = None) -> Fetched:
        """The page at a URL, as sent.

        Args:
            url: Anything; see `urls.checked_url` for what is taken.
            deadline: Time of the running loop until which it may wait for a place. Waiting costs nothing of the page's
                own time, and what is begun has all of that.
            places: What is to be closed when the page is needed no more: till then it counts as one under way, which
                is what bounds the memory of pages. None: it is over when it is had.

        Raises:
            Unfetchable: There is no page to be had: why, in words that hold nothing of what the server said.
            SearchUnavailable: Others were fetched until the deadline. That is no fault of the page.
        """
        first = checked_url(url)
        clock = asyncio.get_running_loop()
        seconds = self._settings.page_timeout_s
        if clock.time() >= deadline:
            raise SearchUnavailable(_NO_PLACE)
        limit = asyncio.timeout_at(deadline)
        time = PageTime(limit, seconds=seconds, deadline=deadline)
        try:
            with ExitStack() as own:
                async with limit:
                    return await self._tried(first, time, own if places is None else places)
        except TimeoutError:
            if not time.is_over:
                raise SearchUnavailable(_NO_PLACE) from None
            raise Unfetchable("timeout", f"it was not had in {seconds:g} s") from None

    async def _tried(self, url: URL, time: PageTime, places: ExitStack) -> Fetched:
        for further in reversed(range(self._settings.fetch.attempts)):
            try:
                return await self._followed(url, time, places)
            except _MayPass:
                if not further or not time.half_is_left or self._closed:
                    raise
            await self._pause(_PAUSE_S)
        raise AssertionError("attempts is at least 1")

    async def _followed(self, url: URL, time: PageTime, places: ExitStack) -> Fetched:
        for _ in range(MAX_REDIRECTS + 1):
            host = (url.raw_host or "").rstrip(".")
            async with self._hosts.one(host):
                with ExitStack() as held:
                    held.callback(await self._pages.take(site_of(host)))
                    with time.running():
                        came = await self._asked(url, time, held)
                    if isinstance(came, Fetched):
                        places.push(held.pop_all())
                        return came
            url = checked_url(came, base=url)
        raise Unfetchable("redirects", f"there are more than {MAX_REDIRECTS}")

    async def _asked(self, url: URL, time: PageTime, held: ExitStack) -> Fetched | str:
        """One request, on a connection of its own: the page, or the `Location` that it leads to."""
        assert self._session is not None and self._lookups is not None, "open() comes first"
        under_way = Exchange(await self._lookups.addresses(url.raw_host or "", url.port or 0, time))
        exchange.set(under_way)
        try:
            async with self._session.get(url, allow_redirects=False) as response:
                if response.status in _REDIRECTS and "Location" in response.headers:
                    return response.headers["Location"]
                return await self._page(url, response, under_way, time, held)
        except (aiohttp.ClientError, OSError) as error:
            failure = _failure(error, under_way)
        # Not in the handler: what aiohttp says may hold what the server said.
        raise failure

    async def _page(
        self, url: URL, response: aiohttp.ClientResponse, under_way: Exchange, time: PageTime, held: ExitStack
    ) -> Fetched:
        if response.status != 200:
            kind = _MayPass if response.status in _BUSY else Unfetchable
            raise kind("http", f"status {response.status}")
        encoding = _encoding(response.headers)
        media_type, charset = _media_type(response.headers)
        if media_type not in MEDIA_TYPES | _UNTYPED or (encoding and media_type in _UNTYPED):
            raise Unfetchable("type", "it is no page, text or PDF")
        length = response.content_length
        if length is not None and length > self._settings.max_page_bytes:
            raise self._too_large()

        async def may_be_large() -> None:
            with time.waiting():
                held.callback(await self._large.take(site_of(url.raw_host or "")))

        body = await self._body(response, under_way, may_be_large, sniffed=not encoding and media_type in _UNTYPED)
        if not encoding and body.startswith(b"%PDF-"):
            media_type = PDF
        elif media_type in _UNTYPED:
            media_type = "text/html"
        return Fetched(str(url), media_type, charset, encoding, body)

    async def _body(
        self,
        response: aiohttp.ClientResponse,
        under_way: Exchange,
        may_be_large: Callable[[], Awaitable[None]],
        *,
        sniffed: bool,
    ) -> bytes:
        body = bytearray()
        async for part in response.content.iter_any():
            under_way.num_taken += len(part)
            if len(body) + len(part) > self._settings.max_page_bytes:
                raise self._too_large()
            if len(body) <= LARGE_BYTES < len(body) + len(part):
                await may_be_large()
            body += part
            if sniffed and len(body) >= _SNIFFED_BYTES:
                _check_first_bytes(body)
                sniffed = False
        if sniffed:
            _check_first_bytes(body)
        return bytes(body)

    def _too_large(self) -> Unfetchable:
        return Unfetchable("too_large", f"it is larger than {self._settings.max_page_bytes} bytes")

    def _say_what_is_unusual(self) -> None:
        if allowed := self._settings.fetch.allowed_networks:
            warn_once(_log, f"pages are also fetched from {', '.join(allowed)} (allowed_networks)")
        if names := [name for name in _PROXIES if os.environ.get(name) or os.environ.get(name.lower())]:
            warn_once(_log, f"{', '.join(names)}: not used for pages, since addresses behind a proxy cannot be checked")


def _encoding(headers: CIMultiDictProxy[str]) -> str:
    said = ", ".join(headers.getall("Content-Encoding", ())).strip().lower()
    if said not in ENCODINGS:
        raise Unfetchable("encoding", "it is packed in a way that was not asked for")
    return ENCODINGS[said]


def _media_type(headers: CIMultiDictProxy[str]) -> tuple[str, str]:
    """Type and charset; empty where there is none."""
    media_type, _, rest = headers.get("Content-Type", "").partition(";")
    charset = _CHARSET.search(rest)
    return media_type.strip().lower(), charset.group(1).lower() if charset else ""


def _check_first_bytes(body: bytes | bytearray) -> None:
    if not body.removeprefix(codecs.BOM_UTF8).lstrip().startswith((b"<", b"%PDF-")):
        raise Unfetchable("type", "its type is not said, and it is neither HTML nor PDF")


def _failure(error: Exception, under_way: Exchange) -> Unfetchable:
    """What is said of an error of aiohttp, in words of our own: its words hold what the server sent."""
    if under_way.wasted:
        return Unfetchable("http", "nearly all that came was something else than a page")
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        said = getattr(error.certificate_error, "verify_message", "")
        return Unfetchable("tls", f"the certificate is not valid: {said}")
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return Unfetchable("tls", "no agreement on how to encrypt")
    if under_way.refused and isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError)):
        return Unfetchable("blocked", "; ".join(dict.fromkeys(map(str, under_way.refused[:3]))))
    if isinstance(error, aiohttp.InvalidURL):
        return Unfetchable("invalid_url", "it cannot be asked for")
    # A body that was cut off comes with a PayloadEncodingError, one without sense with another error of the parser.
    makes_no_sense = isinstance(error.__cause__, HttpProcessingError) and not isinstance(
        error.__cause__, PayloadEncodingError
    )
    if isinstance(error, aiohttp.ClientResponseError) or makes_no_sense:
        return Unfetchable("http", "the answer is not HTTP, or its header is too long")
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return Unfetchable("dns", "the name is not known")
    if isinstance(error, aiohttp.ServerTimeoutError):
        return _MayPass("connect", "no connection in time")
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
        return _MayPass("connect", os.strerror(number) if number else "no connection")
    return _MayPass("connect", "the server broke off")
