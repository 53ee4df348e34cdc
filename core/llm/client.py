"""HTTP client for model servers: one aiohttp session per pool, set up for many long requests.

aiohttp's defaults do not fit: at most 100 connections, five minutes per request, proxies from the environment, a cookie
jar. The pool enforces deadlines; this module turns every transport error into a `Failure`.
"""

from __future__ import annotations

import functools
import os
import re
import resource
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from multidict import CIMultiDict, istr
from yarl import URL

from treadle.core.errors import ConfigError
from treadle.core.llm.config import EndpointSettings, ModelSettings
from treadle.core.llm.extras import NO_HEADERS, RequestHeaders, secrets_of
from treadle.core.llm.failures import Failure, excerpt

if TYPE_CHECKING:
    import aiohttp

KEY_MARK = b"[key]"
"""Replacement for an endpoint's key wherever a server repeats it."""
MIN_SECRET_CHARS = 8
"""Length from which keys are searched for in successful answers, too. Shorter ones are placeholders such as EMPTY,
which may be words of a completion."""
KEEPALIVE_S = 4.0
"""Seconds until idle connections are closed: before uvicorn's 5 s, so that the next request is not reset."""

_READ_BUFFER_BYTES = 256 << 10
_ESCAPED_LETTER = re.compile(rb"\\u00(?:3[0-9]|[46][1-9a-f]|[57][0-9a])", re.IGNORECASE)
"""JSON escape of an ASCII letter or digit."""


class Target:
    """Addresses and headers of one endpoint, prepared once; `secrets` are those outside of `Authorization`."""

    def __init__(self, settings: EndpointSettings, further: RequestHeaders = NO_HEADERS) -> None:
        self.url = settings.url
        self.secrets = further.secrets
        self.models = URL(f"{settings.url}/models")
        self.completions = URL(f"{settings.url}/completions")
        self.chat = URL(f"{settings.url}/chat/completions")
        self.headers = CIMultiDict({istr("Content-Type"): "application/json", istr("Accept-Encoding"): "identity"})
        self.headers.update(further.values)
        if settings.api_key_env is not None:
            self.headers[istr("Authorization")] = f"Bearer {key_of(settings.api_key_env, f'endpoint {settings.url}')}"


def key_of(variable: str, user: str) -> str:
    """Return the key in an environment variable; raise ConfigError naming its `user` if there is no usable one."""
    key = os.environ.get(variable, "")
    if not key or not key.isprintable() or not key.isascii():
        raise ConfigError(
            f"{user} needs a key, but environment variable {variable} "
            + ("does not contain a usable one" if key else "is not set")
        )
    return key


def request_headers(name: str, settings: ModelSettings) -> RequestHeaders:
    """Return the additional headers of a model's requests; raise ConfigError for a variable without a usable value."""
    read = {
        header: key_of(variable, f"models.{name}: header {header}") for header, variable in settings.headers_env.items()
    }
    return RequestHeaders({**settings.headers, **read}, secrets_of(tuple(read.values())))


class AnswerTooLarge(Failure):
    """Answer beyond the client's limit of bytes."""

    def __init__(self, limit: int) -> None:
        super().__init__("malformed", f"the answer is larger than {limit} bytes")


class HttpClient:
    """HTTP session; create it in a running event loop and close it with `close`."""

    def __init__(self, connect_timeout_s: float, max_response_bytes: int, *, unpacks: bool = False) -> None:
        """Set up; the limits are the seconds to open a connection, and the bytes of a response.

        With `unpacks`, compressed bodies are decompressed, although they are never asked for.
        """
        import aiohttp

        raise_open_file_limit()
        self._limit = max_response_bytes
        self._unpacks = unpacks
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S, ttl_dns_cache=300)
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s),
            trust_env=False,
            auto_decompress=False,
            read_bufsize=_READ_BUFFER_BYTES,
            skip_auto_headers=("User-Agent", "Accept"),
        )

    async def post(
        self, url: URL, body: bytes, headers: CIMultiDict[str], *, secrets: Sequence[str] = ()
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Send a JSON body; return status, headers and body. Raise Failure for every error below HTTP.

        `secrets` are keys that the request carries outside of `Authorization`; they are masked in the same way.
        """
        return await self._exchange("POST", url, body, headers, secrets)

    async def get(
        self, url: URL, headers: CIMultiDict[str], *, secrets: Sequence[str] = ()
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Send a GET request; otherwise like `post`."""
        return await self._exchange("GET", url, None, headers, secrets)

    async def close(self) -> None:
        """Close the session and its connections."""
        await self._session.close()

    async def _exchange(
        self, method: str, url: URL, body: bytes | None, headers: CIMultiDict[str], secrets: Sequence[str]
    ) -> tuple[int, Mapping[str, str], bytes]:
        from aiohttp import ClientError

        keys = [key for key in (*secrets, headers.get("Authorization", "").removeprefix("Bearer ")) if key]
        try:
            async with self._session.request(
                method, url, data=body, headers=headers, allow_redirects=False
            ) as response:
                data = await self._read(response)
                if response.status == 200 and not any(len(key) >= MIN_SECRET_CHARS for key in keys):
                    return 200, response.headers, data
                said = data
                for key in keys:
                    if response.status != 200 or len(key) >= MIN_SECRET_CHARS:
                        said = without_key(said, key)
                # Completions are kept in journals and data sets, and their token ids would still spell a masked key.
                if response.status == 200 and said is not data:
                    raise Failure("malformed", "the answer contains the API key of the request")
                return response.status, response.headers, said
        except ClientError as error:
            failure = _failure(error, keys)
        # Raised outside the handler: aiohttp's error contains the server's words, and tracebacks show the whole chain.
        raise failure

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        length = response.content_length
        if length is not None and length <= self._limit:
            return self._unpacked(await response.read(), response.headers.get("Content-Encoding", ""))
        parts: list[bytes] = []
        size = 0
        # Without a length, or with one beyond the limit, stop reading as soon as the limit is passed.
        async for part in response.content.iter_any():
            size += len(part)
            if size > self._limit:
                response.close()
                raise AnswerTooLarge(self._limit)
            parts.append(part)
        return self._unpacked(b"".join(parts), response.headers.get("Content-Encoding", ""))

    def _unpacked(self, data: bytes, encoding: str) -> bytes:
        """Return a body without compression, which some proxies apply although it is not accepted."""
        if not self._unpacks or encoding.lower() not in ("gzip", "x-gzip", "deflate"):
            return data
        try:
            unpacked, fits = _inflated(data, self._limit)
        except zlib.error:
            raise Failure("malformed", f"the answer's body is not {excerpt(encoding.encode())}") from None
        if not fits:
            raise AnswerTooLarge(self._limit)
        return unpacked


def _inflated(data: bytes, limit: int) -> tuple[bytes, bool]:
    """Return data that was compressed by gzip or zlib, and whether that is all and at most `limit` bytes.

    Raises zlib.error for other data.
    """
    reader = zlib.decompressobj(zlib.MAX_WBITS | 32)
    unpacked = reader.decompress(data, limit + 1)
    if len(unpacked) <= limit and not reader.eof:
        raise zlib.error("the data ends early")
    return unpacked, len(unpacked) <= limit


def without_key(data: bytes, key: str) -> bytes:
    """Return a reply without the key that was sent: servers like to repeat a key that they refuse.

    Also finds the key in JSON's spellings, with any of its characters escaped.
    """
    if not key:
        return data
    if (plain := key.encode()) in data:
        data = data.replace(plain, KEY_MARK)
    if b"\\" not in data:
        return data
    # Escaped letters and digits are rare, and searching for them takes longer.
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


def _failure(error: aiohttp.ClientError, keys: Sequence[str]) -> Failure:
    import aiohttp

    # aiohttp mentions its TLS setting even for plain HTTP.
    said = str(error).replace(" ssl:default", "")
    data = said.encode("utf-8", "replace")
    for key in keys:
        data = without_key(data, key)
    words = excerpt(data) if said else type(error).__name__
    if isinstance(error, (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError)):
        return Failure("refused", f"TLS: {words}")
    if isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError)):
        return Failure("connect", words)
    if isinstance(error, aiohttp.ClientResponseError):
        return Failure("malformed", f"not HTTP: {words}")
    return Failure("reset", words)


def raise_open_file_limit() -> None:
    """Raise the soft limit of open files to the hard limit: each request in flight holds a connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):  # some kernels refuse an infinite limit; keep the old one
            return
