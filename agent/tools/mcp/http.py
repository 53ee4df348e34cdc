"""Connect to an MCP server over streamable HTTP, through a guard of addresses and sizes.

A host name may resolve only to public addresses and to configured networks; this is checked for the address of each
connection. An IP address in the URL itself is always allowed, and so is `localhost` at a loopback address. Redirects to
another origin are not followed (the client package follows those within one origin). Proxies of the environment are not
used.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from treadle.agent.tools.mcp.connection import Lose
from treadle.core.errors import ConfigError
from treadle.web.addresses import AddressRule, BlockedAddress

if TYPE_CHECKING:
    import httpx2

    from treadle.agent.tools.mcp.settings import McpServerSettings

MAX_RESPONSE_BYTES = 16 * 1024 * 1024
_CONNECT_S = 30.0
_END_SESSION_S = 2.0
_CHECKED_PORT = 443
"""Port with which addresses are checked, since the rule on ports must not refuse the port that the user chose."""
_KEY_MARK = "[token]"


class HttpTransport:
    """Session with a server over HTTP. Raises ConfigError if its token is not set."""

    def __init__(self, settings: McpServerSettings) -> None:
        assert settings.url is not None
        self._settings = settings
        self._url = settings.url
        self._token = _token(settings.api_key_env)
        self._fault = ""

    def explain(self, problem: str) -> str:
        """Return a problem with the last failure of HTTP, without the token."""
        text = f"at {self._url} {problem}" + (f": {self._fault}" if self._fault else "")
        return text.replace(self._token, _KEY_MARK) if self._token else text

    def answered(self) -> None:
        """Forget earlier failures, such as that of the probe of the newest protocol: a later request was answered."""
        self._fault = ""

    @asynccontextmanager
    async def connect(self, lose: Lose) -> AsyncIterator[Any]:
        """Yield the streams of a session with the server."""
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        def fail(fault: str, *, is_final: bool, may_pass: bool = True) -> None:
            self._fault = fault
            if is_final:
                lose("failed", may_pass=may_pass)

        # A small compressed answer could fill the memory.
        headers = {"Accept-Encoding": "identity"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        guard = _guarded_transport(self._url, tuple(self._settings.allowed_networks), fail)
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(
                httpx2.AsyncClient(
                    transport=guard,
                    headers=headers,
                    timeout=httpx2.Timeout(_CONNECT_S, read=None),
                    trust_env=False,
                )
            )
            yield await stack.enter_async_context(streamable_http_client(self._url, http_client=client))


def _token(variable: str | None) -> str | None:
    if variable is None:
        return None
    token = os.environ.get(variable, "")
    if not token or not token.isprintable() or not token.isascii():
        said = "does not contain a usable token" if token else "is not set"
        raise ConfigError(f"an MCP server needs a token, but environment variable {variable} {said}")
    return token


def _guarded_transport(url: str, networks: tuple[str, ...], fail: Callable[..., None]) -> httpx2.AsyncBaseTransport:
    """Return a transport that connects to allowed addresses only, and reports failures of HTTP."""
    import httpcore2
    import httpx2

    backend = _guarded_backend()(url, networks)
    inner = httpx2.AsyncHTTPTransport(trust_env=False)
    inner._pool = httpcore2.AsyncConnectionPool(  # the client package's way to a backend of one's own
        ssl_context=httpx2.create_ssl_context(trust_env=False), network_backend=backend
    )

    class Guarded(httpx2.AsyncBaseTransport):
        """Transport with limits. A failure ends the connection; most failures of probes and of other methods do not."""

        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            may_fail = request.method != "POST" or b"server/discover" in await request.aread()
            try:
                limit_s = _END_SESSION_S if request.method == "DELETE" else None
                async with asyncio.timeout(limit_s):
                    response = await inner.handle_async_request(request)
            except (httpx2.TransportError, OSError) as error:
                # A blocked or refused address stays blocked, so the failure of a probe ends the connection, too.
                fail(_words(error), is_final=request.method == "POST")
                raise
            status = response.status_code
            if response.headers.get("content-encoding", "identity").lower() != "identity":
                await response.aclose()
                said = "the answer is compressed, though identity was asked for"
                fail(said, is_final=True, may_pass=False)
                raise httpx2.ReadError(said)
            is_json = response.headers.get("content-type", "").lower().startswith("application/json")
            if status in (401, 403):
                is_final = request.method == "POST"
                fail(f"HTTP {status}; check the token (api_key_env)", is_final=is_final, may_pass=False)
            elif 300 <= status < 400 and not _is_same_origin(request.url, response.headers.get("location", "")):
                said = f"HTTP {status}: redirects to elsewhere are not followed; write the final URL"
                fail(said, is_final=True, may_pass=False)
            elif status == 200 and request.method == "POST" and not (is_json or _is_events(response)):
                fail("the answer is neither JSON nor an event stream", is_final=not may_fail)
            elif status >= 400 and not (is_json and status < 500 and status not in (404, 429)):
                fail(f"HTTP {status}", is_final=not may_fail)
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = Limited(response.stream)
            return response

        async def aclose(self) -> None:
            await inner.aclose()

    class Limited(httpx2.AsyncByteStream):
        """Body of a response that ends with an error if it is too large or breaks off."""

        def __init__(self, stream: httpx2.AsyncByteStream) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            num_bytes = 0
            try:
                async for chunk in self._stream:
                    num_bytes += len(chunk)
                    if num_bytes > MAX_RESPONSE_BYTES:
                        raise httpx2.ReadError(f"a response has more than {MAX_RESPONSE_BYTES} bytes")
                    yield chunk
            except httpx2.TransportError as error:
                fail(_words(error), is_final=True)
                raise

        async def aclose(self) -> None:
            await self._stream.aclose()

    return Guarded()


@cache
def _guarded_backend() -> Any:
    """Return the class of network backends that check addresses; made late, as the package is imported late."""
    import httpcore2

    class Backend(httpcore2.AnyIOBackend):
        def __init__(self, url: str, networks: tuple[str, ...]) -> None:
            self._host = urlsplit(url).hostname or ""
            self._rule = AddressRule([ipaddress.ip_network(text) for text in networks])

        async def connect_tcp(self, host: str, port: int, *args: Any, **options: Any) -> Any:
            loop = asyncio.get_running_loop()
            try:
                rows = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except OSError as error:
                raise httpcore2.ConnectError(f"{host} has no address: {error.strerror}") from error
            problem: Exception = httpcore2.ConnectError(f"{host} has no address")
            for address in dict.fromkeys(str(row[4][0]) for row in rows):
                try:
                    check_address(self._rule, host, address)
                    return await super().connect_tcp(address, port, *args, **options)
                except BlockedAddress as error:
                    problem = httpcore2.ConnectError(f"{error}; name its network in allowed_networks if you mean it")
                except httpcore2.ConnectError as error:
                    problem = error
            raise problem

    return Backend


def check_address(rule: AddressRule, host: str, address: str) -> None:
    """Raise BlockedAddress unless the host of a URL may be connected to at an address."""
    found = ipaddress.ip_address(address.partition("%")[0])
    try:
        if ipaddress.ip_address(host) == found:
            return
    except ValueError:
        pass
    if host in ("localhost", "localhost.") and found.is_loopback:
        return
    rule.check(address, _CHECKED_PORT)


def _is_events(response: httpx2.Response) -> bool:
    return response.headers.get("content-type", "").lower().startswith("text/event-stream")


def _is_same_origin(url: httpx2.URL, location: str) -> bool:
    try:
        target = url.join(location)
    except ValueError:
        return False
    return (target.scheme, target.host, target.port) == (url.scheme, url.host, url.port)


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
