"""HTTP to model servers: one aiohttp session per pool, set up for many long requests.

aiohttp's defaults are wrong here: a limit of 100 connections, five minutes for everything, proxies from the
environment, a cookie jar. Deadlines are the pool's business; this module turns whatever goes wrong into a `Failure`.
"""

from __future__ import annotations

import functools
import os
import re
import resource
from collections.abc import Mapping
from typing import Protocol

import aiohttp
from multidict import CIMultiDict, istr
from yarl import URL

from treadle.core.errors import ConfigError
from treadle.core.llm.config import EndpointSettings
from treadle.core.llm.wire import Failure, excerpt

KEY_MARK = b"[key]"
"""What stands in place of an endpoint's key wherever a server repeats it."""
SHORTEST_SECRET = 8
"""Shorter keys are placeholders such as EMPTY: they may well be words of a completion, which stays as it is."""
KEEPALIVE_S = 4.0
"""Idle connections are dropped before uvicorn drops them at 5 s: a request after a longer tool call meets no reset."""

_READ_BUFFER_BYTES = 256 << 10
_ESCAPED_LETTER = re.compile(rb"\\u00(?:3[0-9]|[46][1-9a-f]|[57][0-9a])", re.IGNORECASE)
"""Or digit, of ASCII."""


class Target:
    """One endpoint's addresses and headers, prepared once."""

    def __init__(self, settings: EndpointSettings) -> None:
        self.url = settings.url
        self.models = URL(f"{settings.url}/models")
        self.completions = URL(f"{settings.url}/completions")
        self.chat = URL(f"{settings.url}/chat/completions")
        self.headers = CIMultiDict({istr("Content-Type"): "application/json", istr("Accept-Encoding"): "identity"})
        if settings.api_key_env is not None:
            key = os.environ.get(settings.api_key_env, "")
            if not key or not key.isprintable() or not key.isascii():
                raise ConfigError(
                    f"endpoint {settings.url} wants a key, but environment variable {settings.api_key_env} "
                    + ("does not hold a usable one" if key else "is not set")
                )
            self.headers[istr("Authorization")] = f"Bearer {key}"


class HttpSettings(Protocol):
    """What the session must know of its servers."""

    @property
    def connect_timeout_s(self) -> float:
        """Most time for opening a connection."""
        ...

    @property
    def max_response_bytes(self) -> int:
        """Largest accepted answer."""
        ...


class HttpClient:
    """One session; used inside a running event loop and closed by `close`."""

    def __init__(self, settings: HttpSettings) -> None:
        raise_open_file_limit()
        self._limit = settings.max_response_bytes
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S, ttl_dns_cache=300)
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_timeout_s),
            trust_env=False,
            auto_decompress=False,
            read_bufsize=_READ_BUFFER_BYTES,
            skip_auto_headers=("User-Agent", "Accept"),
        )

    async def post(
        self, url: URL, body: bytes, headers: CIMultiDict[str], *, secret: str = ""
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Send a JSON body; return status, headers and body. Raises Failure for everything below HTTP.

        `secret` is a key that the request carries elsewhere than in `Authorization`; it is masked like that one.
        """
        return await self._exchange("POST", url, body, headers, secret)

    async def get(
        self, url: URL, headers: CIMultiDict[str], *, secret: str = ""
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Like `post`, without a body."""
        return await self._exchange("GET", url, None, headers, secret)

    async def close(self) -> None:
        """Close the session and its connections."""
        await self._session.close()

    async def _exchange(
        self, method: str, url: URL, body: bytes | None, headers: CIMultiDict[str], secret: str
    ) -> tuple[int, Mapping[str, str], bytes]:
        key = secret or headers.get("Authorization", "").removeprefix("Bearer ")
        try:
            async with self._session.request(
                method, url, data=body, headers=headers, allow_redirects=False
            ) as response:
                data = await self._read(response)
                if response.status == 200 and len(key) < SHORTEST_SECRET:
                    return 200, response.headers, data
                said = _without_key(data, key)
                # A completion is kept in journals and data sets, and its ids spell the key where its text does.
                if response.status == 200 and said is not data:
                    raise Failure("malformed", "the answer repeats the key that it was asked with")
                return response.status, response.headers, said
        except aiohttp.ClientError as error:
            failure = _failure(error, key)
        # Not in the handler: what aiohttp says holds what the server said, and tracebacks show the whole chain.
        raise failure

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        length = response.content_length
        if length is not None and length <= self._limit:
            return await response.read()
        parts: list[bytes] = []
        size = 0
        # Without a length, or with one that lies beyond the limit, stop as soon as the limit is passed.
        async for part in response.content.iter_any():
            size += len(part)
            if size > self._limit:
                response.close()
                raise Failure("malformed", f"the answer is larger than {self._limit} bytes")
            parts.append(part)
        return b"".join(parts)


def _without_key(data: bytes, key: str) -> bytes:
    """What a server said, without the key that it was sent: servers that refuse one like to repeat it.

    Also as JSON may spell it, with any of its characters as escapes.
    """
    if not key:
        return data
    if (plain := key.encode()) in data:
        data = data.replace(plain, KEY_MARK)
    if b"\\" not in data:
        return data
    # Nobody needs to escape these, and looking for them takes longer.
    has_letters = _ESCAPED_LETTER.search(data) is not None
    if key.isalnum() and not has_letters:
        return data
    masked, times = _escaped(key, has_letters).subn(KEY_MARK, data)
    return masked if times else data


@functools.lru_cache(maxsize=64)
def _escaped(key: str, has_letters: bool) -> re.Pattern[bytes]:
    signs = (char if char.isalnum() else rf"\\?{re.escape(char)}" for char in key)
    escapes = (None if char.isalnum() and not has_letters else rf"\\u00(?i:{ord(char):02x})" for char in key)
    spelled = (f"(?:{sign}|{escape})" if escape else sign for sign, escape in zip(signs, escapes, strict=True))
    return re.compile("".join(spelled).encode())


def _failure(error: aiohttp.ClientError, key: str) -> Failure:
    # aiohttp names its TLS setting even where no TLS is spoken.
    said = str(error).replace(" ssl:default", "")
    words = excerpt(_without_key(said.encode("utf-8", "replace"), key)) if said else type(error).__name__
    if isinstance(error, (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError)):
        return Failure("refused", f"TLS: {words}")
    if isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError)):
        return Failure("connect", words)
    if isinstance(error, aiohttp.ClientResponseError):
        return Failure("malformed", f"not HTTP: {words}")
    return Failure("reset", words)


def raise_open_file_limit() -> None:
    """Raise the soft limit of open files to the hard one: each request in flight holds a connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):  # some kernels refuse an infinite limit; then the old one stays
            return
