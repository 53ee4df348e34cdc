"""Fetch web pages with limits on addresses, redirects, bytes and time. Nothing is decompressed or parsed here.

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
from dataclasses import dataclass
from importlib.metadata import version
from typing import Protocol

import aiohttp
from aiohttp.abc import AbstractResolver
from aiohttp.http_exceptions import HttpProcessingError, PayloadEncodingError
from multidict import CIMultiDictProxy
from yarl import URL

from treadle.core.llm.client import raise_open_file_limit
from treadle.retriever.client import SearchUnavailable
from treadle.web.addresses import AddressRule
from treadle.web.config import FetchSettings
from treadle.web.dns import Lookups, ResolvedAddresses, SystemResolver
from treadle.web.lease_pool import site_of
from treadle.web.log_once import warn_once
from treadle.web.slots import PageTime, Slots
from treadle.web.sockets import Exchange, MeteredSocket, SocketGuard, exchange
from treadle.web.types import HTML_TYPES, PDF_TYPE, TEXT_TYPES, Fetched, Unfetchable
from treadle.web.urls import checked_url

MAX_REDIRECTS = 5
MEDIA_TYPES = frozenset({*HTML_TYPES, *TEXT_TYPES, PDF_TYPE})
"""Media types that are read."""
LARGE_BYTES = 1024 * 1024
"""A larger body needs one of the slots for large bodies."""
NUM_LARGE, NUM_LARGE_OF_SITE = 16, 4
ENCODINGS = {"": "", "identity": "", "gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate"}
"""Supported content encodings, mapped to their names in `Fetched`."""

IDENTITY = "identity"
"""Value of `Wanted.encodings` for content without encoding."""

_UNTYPED = frozenset({"", "application/octet-stream", "binary/octet-stream", "application/x-pdf"})
"""Types that say nothing about the content; the first bytes decide."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_BUSY = frozenset({429, 500, 502, 503, 504})
_SNIFFED_BYTES = 512
_NO_SLOT = (
    "pages of the search waited for a place among those that are fetched until its time was over; allow more by "
    "fetch.max_fetches or fetch.max_per_host, or let fewer rollouts run at once"
)
_PAUSE_S = 0.5
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([A-Za-z0-9][A-Za-z0-9_.:+-]{0,39})", re.IGNORECASE)

_log = logging.getLogger(__name__)


class _TransientFailure(Unfetchable):
    """Failure that another attempt may avoid."""


class FetchLimits(Protocol):
    """Limits of fetches, which `treadle.web.config.WebSettings` implements."""

    @property
    def fetch(self) -> FetchSettings:
        """Limits of connections."""
        ...

    @property
    def page_timeout_s(self) -> float:
        """Time limit of one page in seconds."""
        ...

    @property
    def max_page_bytes(self) -> int:
        """Largest body of a page in bytes."""
        ...


@dataclass(frozen=True, slots=True)
class Wanted:
    """Kind of content to fetch.

    Attributes:
        what: Description of the content for messages.
        media_types: Media types that are accepted.
        accept: Value of the header `Accept`.
        encodings: Value of the header `Accept-Encoding`.
        check_first_bytes: Raises Unfetchable for the beginning of a body without a type; None accepts any.
    """

    what: str
    media_types: frozenset[str]
    accept: str
    encodings: str
    check_first_bytes: Callable[[bytes | bytearray], None] | None = None


class Fetcher:
    """Page fetcher, used between `open` and `close` inside one event loop.

    Args:
        settings: Limits; `fetch.allowed_networks` may be connected to in addition to public addresses.
        wanted: Kind of content; none means pages.
        resolver: DNS resolver; none means that of the machine.
        make_socket: Creates sockets for addresses that the guard has allowed.
        pause: Waits before another attempt.
    """

    def __init__(
        self,
        settings: FetchLimits,
        *,
        wanted: Wanted | None = None,
        resolver: AbstractResolver | None = None,
        make_socket: Callable[[int, int, int], MeteredSocket] = MeteredSocket,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._settings, self._wanted = settings, wanted or PAGES
        self._guard = SocketGuard(AddressRule(map(ipaddress.ip_network, settings.fetch.allowed_networks)), make_socket)
        self._given_resolver, self._pause = resolver, pause
        fetch = settings.fetch
        self._hosts = Slots(None, fetch.max_per_host)
        # A slot is held until the page is read, which bounds memory; a site gets a quarter of them at most.
        self._pages = Slots(fetch.max_fetches, max(fetch.max_per_host, fetch.max_fetches // 4))
        self._large = Slots(NUM_LARGE, NUM_LARGE_OF_SITE)
        self._closed = False
        self._lookups: Lookups | None = None
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Open the HTTP session; warn about unusual settings."""
        self._warn_about_settings()
        raise_open_file_limit()
        self._lookups = Lookups(self._given_resolver or SystemResolver())
        fetch = self._settings.fetch
        self._session = aiohttp.ClientSession(
            # No connection is reused and no DNS result is cached: each request passes the guard.
            connector=aiohttp.TCPConnector(
                resolver=ResolvedAddresses(), use_dns_cache=False, limit=0, force_close=True, socket_factory=self._guard
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=fetch.connect_timeout_s),
            trust_env=False,
            auto_decompress=False,
            headers={
                "User-Agent": fetch.user_agent or f"treadle/{version('treadle')}",
                "Accept": self._wanted.accept,
                "Accept-Encoding": self._wanted.encodings,
            },
        )
        # aiohttp retries by itself if a server hangs up; the number of tries is `attempts`.
        self._session._retry_connection = False

    async def close(self) -> None:
        """Cancel the fetches in progress."""
        self._closed = True
        if self._session is not None:
            await self._session.close()
        if self._lookups is not None:
            await self._lookups.close()

    async def fetch(self, url: str, *, deadline: float, held_slots: ExitStack | None = None) -> Fetched:
        """Fetch the page at a URL and return it as sent.

        Args:
            url: Any text; see `urls.checked_url` for what is accepted.
            deadline: Time in the running loop's clock until which it may wait for a slot. Waiting does not count
                towards the page's timeout, and a fetch that has started gets the whole timeout.
            held_slots: Exit stack that holds the page's slots; the caller closes it when the page is no longer needed,
                which bounds the memory of pages. None releases the slots on return.

        Raises:
            Unfetchable: The page cannot be fetched. The message contains nothing that the server sent.
            SearchUnavailable: Other pages took all slots until the deadline; this is not the page's fault.
        """
        first = checked_url(url)
        clock = asyncio.get_running_loop()
        seconds = self._settings.page_timeout_s
        if clock.time() >= deadline:
            raise SearchUnavailable(_NO_SLOT)
        limit = asyncio.timeout_at(deadline)
        time = PageTime(limit, seconds=seconds, deadline=deadline)
        try:
            with ExitStack() as own:
                async with limit:
                    return await self._fetch_with_retries(first, time, own if held_slots is None else held_slots)
        except TimeoutError:
            if not time.is_exhausted:
                raise SearchUnavailable(_NO_SLOT) from None
            raise Unfetchable("timeout", f"it was not fetched in {seconds:g} s") from None

    async def _fetch_with_retries(self, url: URL, time: PageTime, held_slots: ExitStack) -> Fetched:
        for attempts_left in reversed(range(self._settings.fetch.attempts)):
            try:
                return await self._follow_redirects(url, time, held_slots)
            except _TransientFailure:
                if not attempts_left or not time.can_retry or self._closed:
                    raise
            await self._pause(_PAUSE_S)
        raise AssertionError("attempts is at least 1")

    async def _follow_redirects(self, url: URL, time: PageTime, held_slots: ExitStack) -> Fetched:
        for _ in range(MAX_REDIRECTS + 1):
            host = (url.raw_host or "").rstrip(".")
            with ExitStack() as host_slot:
                host_slot.callback(await self._hosts.take(host))
                with ExitStack() as held:
                    held.callback(await self._pages.take(site_of(host)))
                    with time.running():
                        response_or_redirect = await self._send_request(url, time, held)
                    if isinstance(response_or_redirect, Fetched):
                        held_slots.push(held.pop_all())
                        return response_or_redirect
            url = checked_url(response_or_redirect, base=url)
        raise Unfetchable("redirects", f"there are more than {MAX_REDIRECTS}")

    async def _send_request(self, url: URL, time: PageTime, held: ExitStack) -> Fetched | str:
        """Send one request on a connection of its own; return the page, or the `Location` of a redirect."""
        assert self._session is not None and self._lookups is not None, "open() comes first"
        current = Exchange(await self._lookups.addresses(url.raw_host or "", url.port or 0, time))
        exchange.set(current)
        try:
            async with self._session.get(url, allow_redirects=False) as response:
                if response.status in _REDIRECTS and "Location" in response.headers:
                    return response.headers["Location"]
                return await self._page(url, response, current, time, held)
        except (aiohttp.ClientError, OSError) as error:
            failure = _failure(error, current)
        # Not raised in the handler: the context, aiohttp's error, may contain what the server sent.
        raise failure

    async def _page(
        self, url: URL, response: aiohttp.ClientResponse, current: Exchange, time: PageTime, held: ExitStack
    ) -> Fetched:
        if response.status != 200:
            kind = _TransientFailure if response.status in _BUSY else Unfetchable
            raise kind("http", f"status {response.status}")
        encoding = _encoding(response.headers, self._wanted.encodings)
        media_type, charset = _media_type(response.headers)
        if media_type not in self._wanted.media_types | _UNTYPED or (encoding and media_type in _UNTYPED):
            raise Unfetchable("type", f"it is not {self._wanted.what}")
        length = response.content_length
        if length is not None and length > self._settings.max_page_bytes:
            raise self._too_large()

        async def may_be_large() -> None:
            with time.waiting():
                held.callback(await self._large.take(site_of(url.raw_host or "")))

        body = await self._body(response, current, may_be_large, sniffed=not encoding and media_type in _UNTYPED)
        if self._wanted is PAGES:
            if not encoding and body.startswith(b"%PDF-"):
                media_type = PDF_TYPE
            elif media_type in _UNTYPED:
                media_type = "text/html"
        return Fetched(str(url), media_type, charset, encoding, body)

    async def _body(
        self,
        response: aiohttp.ClientResponse,
        current: Exchange,
        may_be_large: Callable[[], Awaitable[None]],
        *,
        sniffed: bool,
    ) -> bytes:
        body, check = bytearray(), self._wanted.check_first_bytes
        async for part in response.content.iter_any():
            current.num_page_bytes += len(part)
            if len(body) + len(part) > self._settings.max_page_bytes:
                raise self._too_large()
            if len(body) <= LARGE_BYTES < len(body) + len(part):
                await may_be_large()
            body += part
            if sniffed and check is not None and len(body) >= _SNIFFED_BYTES:
                check(body)
                sniffed = False
        if sniffed and check is not None:
            check(body)
        return bytes(body)

    def _too_large(self) -> Unfetchable:
        return Unfetchable("too_large", f"it is larger than {self._settings.max_page_bytes} bytes")

    def _warn_about_settings(self) -> None:
        if allowed := self._settings.fetch.allowed_networks:
            warn_once(_log, f"pages are also fetched from {', '.join(allowed)} (allowed_networks)")
        if names := [name for name in _PROXIES if os.environ.get(name) or os.environ.get(name.lower())]:
            warn_once(_log, f"{', '.join(names)}: not used for pages, since addresses behind a proxy cannot be checked")


def _encoding(headers: CIMultiDictProxy[str], requested: str) -> str:
    said = ", ".join(headers.getall("Content-Encoding", ())).strip().lower()
    if said not in ENCODINGS or (ENCODINGS[said] and requested == IDENTITY):
        raise Unfetchable("encoding", "its content encoding was not requested")
    return ENCODINGS[said]


def _media_type(headers: CIMultiDictProxy[str]) -> tuple[str, str]:
    """Return media type and charset; empty if missing."""
    media_type, _, rest = headers.get("Content-Type", "").partition(";")
    charset = _CHARSET.search(rest)
    return media_type.strip().lower(), charset.group(1).lower() if charset else ""


def _check_first_bytes(body: bytes | bytearray) -> None:
    if not body.removeprefix(codecs.BOM_UTF8).lstrip().startswith((b"<", b"%PDF-")):
        raise Unfetchable("type", "it has no content type, and it is neither HTML nor PDF")


PAGES = Wanted(
    "HTML, text or PDF",
    MEDIA_TYPES,
    "text/html, application/xhtml+xml, application/pdf, text/*;q=0.8, application/json;q=0.5",
    "gzip, deflate",
    _check_first_bytes,
)
"""Kind of content of web pages."""


def _failure(error: Exception, current: Exchange) -> Unfetchable:
    """Describe an error of aiohttp in our own words, since its message contains what the server sent."""
    if current.is_aborted:
        return Unfetchable("http", "nearly all bytes received were not part of a page")
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        said = getattr(error.certificate_error, "verify_message", "")
        return Unfetchable("tls", f"the certificate is not valid: {said}")
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return Unfetchable("tls", "the TLS handshake failed")
    if current.refused and isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError)):
        return Unfetchable("blocked", "; ".join(dict.fromkeys(map(str, current.refused[:3]))))
    if isinstance(error, aiohttp.InvalidURL):
        return Unfetchable("invalid_url", "it cannot be requested")
    # A truncated body comes with a PayloadEncodingError, a malformed one with another error of the parser.
    is_malformed = isinstance(error.__cause__, HttpProcessingError) and not isinstance(
        error.__cause__, PayloadEncodingError
    )
    if isinstance(error, aiohttp.ClientResponseError) or is_malformed:
        return Unfetchable("http", "the answer is not HTTP, or its header is too long")
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return Unfetchable("dns", "the host name is unknown")
    if isinstance(error, aiohttp.ServerTimeoutError):
        return _TransientFailure("connect", "no connection in time")
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
        return _TransientFailure("connect", os.strerror(number) if number else "no connection")
    return _TransientFailure("connect", "the server closed the connection")
