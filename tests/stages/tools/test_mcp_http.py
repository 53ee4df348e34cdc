"""MCP servers over streamable HTTP, with a real server of the official package and with broken ones."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from support.servers import mcp_desk
from support.servers.ports import free_port

from treadle.agent.tools.mcp import connection, http
from treadle.agent.tools.mcp.source import McpSource, McpTools
from treadle.agent.tools.outcome import CallContext, ToolOutcome
from treadle.agent.tools.settings import ToolResources
from treadle.core.errors import ConfigError, ToolError
from treadle.environments.tools.registry import TOOLS

CONTEXT = CallContext("?", (), 0)
TASK: Any = None


@contextmanager
def served(port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Serve the tools over HTTP until the block ends."""
    command = [sys.executable, mcp_desk.__file__, "127.0.0.1", str(port)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    assert process.stderr is not None
    try:
        while b"running on" not in (line := process.stderr.readline()):
            assert line, "the server ended"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@asynccontextmanager
async def opened(url: str, **keys: Any) -> AsyncIterator[McpTools]:
    source = TOOLS.parse({"type": "mcp", "url": url, **keys}).source("desk", ToolResources())
    assert isinstance(source, McpSource)
    async with source:
        tools = await source.episode(TASK, 0)
        yield tools
        await tools.close()


async def call(tools: McpTools, name: str, **arguments: Any) -> ToolOutcome:
    return await tools.call(f"desk_{name}", arguments, deadline=1e12, context=CONTEXT)


async def test_tools_are_called_over_http() -> None:
    port = free_port()
    with served(port):
        async with opened(f"http://127.0.0.1:{port}/mcp") as tools:
            assert (await call(tools, "add", a=1, b=2)).text == "3"
            assert (await call(tools, "fail")).status == "error"
            assert (await call(tools, "nothing")).status == "error"
            before = {schema.name for schema in tools.schemas}
            await call(tools, "learn")
            assert {schema.name for schema in tools.schemas} - before == {"desk_learnt"}


async def test_a_server_that_is_killed_and_started_again_serves_the_next_attempt() -> None:
    port = free_port()
    with served(port):
        stack = opened(f"http://127.0.0.1:{port}/mcp")
        tools = await stack.__aenter__()
        with pytest.raises(ToolError) as raised:
            await call(tools, "die")
        assert raised.value.retryable
        assert "\n" not in str(raised.value)
    with pytest.raises(ToolError):
        await call(tools, "add", a=1, b=2)
    with served(port):
        assert (await call(tools, "add", a=1, b=2)).text == "3"
        await stack.__aexit__(None, None, None)


async def test_a_stopped_server_is_infrastructure_and_does_not_hang_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    with served(port) as process:
        async with opened(f"http://127.0.0.1:{port}/mcp", timeout_s=0.5) as tools:
            assert (await call(tools, "hang")).status == "timeout"
            process.send_signal(signal.SIGSTOP)
            monkeypatch.setattr(connection, "PING_S", 0.3)
            with pytest.raises(ToolError, match="answers neither the call nor a ping"):
                await call(tools, "add", a=1, b=2)


Answer = Callable[[asyncio.StreamWriter, bytes], None]


@asynccontextmanager
async def answering(answer: Answer) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Yield the URL of a server that answers all requests in one way, and the requests."""
    requests: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            requests.append(head)
            length = next(
                (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")), 0
            )
            answer(writer, await reader.readexactly(length))
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp", requests


def reply(status: str, body: bytes = b"", kind: str = "application/json", extra: str = "") -> Answer:
    def answer(writer: asyncio.StreamWriter, request: bytes) -> None:
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
        writer.write(head.encode() + body)

    return answer


def _initialized_then(then: Answer) -> Answer:
    """Return answers of a server of an older protocol that lists one tool, and answers calls in another way."""
    lists = {"tools": [{"name": "add", "inputSchema": {"type": "object"}}]}
    begin = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "x", "version": ""}}
    results = {"initialize": begin, "tools/list": lists, "ping": {}}

    def answer(writer: asyncio.StreamWriter, request: bytes) -> None:
        message = json.loads(request) if request else {}
        method = message.get("method")
        if method == "tools/call":
            then(writer, request)
        elif method in results:
            said = {"jsonrpc": "2.0", "id": message["id"], "result": results[method]}
            reply("200 OK", json.dumps(said).encode())(writer, request)
        else:
            reply("404 Not Found" if "id" in message or not message else "202 Accepted")(writer, request)

    return answer


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (reply("401 Unauthorized"), "HTTP 401; check the token"),
        (reply("404 Not Found"), "HTTP 404"),
        (reply("500 Oh"), "HTTP 500"),
        (reply("302 Found", extra="Location: http://127.0.0.1:1/mcp\r\n"), "redirects to elsewhere are not followed"),
        (reply("307 Found", extra="Location: http://example.org/mcp\r\n"), "redirects to elsewhere are not followed"),
        (reply("200 OK", b"hello", "text/plain"), "neither JSON nor an event stream"),
        (reply("200 OK", b"{}", extra="Content-Encoding: gzip\r\n"), "the answer is compressed"),
        (reply("200 OK", b"x" * 70_000), "a response has more than 65536 bytes"),
        (lambda writer, request: writer.close(), "failed"),
    ],
)
async def test_a_server_that_cannot_be_used_is_named(
    answer: Answer, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http, "MAX_RESPONSE_BYTES", 65536)
    monkeypatch.setenv("DESK_TOKEN", "token-of-the-desk")
    async with answering(answer) as (url, requests):
        with pytest.raises(ToolError) as raised:
            async with opened(url, api_key_env="DESK_TOKEN"):
                pass
    assert reason in str(raised.value)
    assert "token-of-the-desk" not in str(raised.value) + caplog.text
    assert any(b"Bearer token-of-the-desk" in request for request in requests)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_server_that_never_answers_is_named() -> None:
    async with answering(lambda writer, request: None) as (url, _):
        with pytest.raises(ToolError):
            async with opened(url, start_timeout_s=0.5):
                pass
    async with hanging() as url:
        with pytest.raises(ToolError, match="not ready within 0.5 s"):
            async with opened(url, start_timeout_s=0.5):
                pass


@asynccontextmanager
async def hanging() -> AsyncIterator[str]:
    """Yield the URL of a server that accepts connections and sends nothing."""
    ended = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ended.wait()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    finally:
        ended.set()
        server.close()


def _events(body: bytes) -> Answer:
    return reply("200 OK", body, "text/event-stream")


@pytest.mark.parametrize(
    "then",
    [
        reply("500 Oh"),
        reply("404 Not Found"),
        reply("200 OK", b"{"),
        reply("200 OK", b'{"jsonrpc":"2.0","id":1,"result":'),
        _events(b""),
        _events(b"data: {}\n\n"),
        _events(b"data: " + b"x" * 70_000 + b"\n\n"),
        lambda writer, request: writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n"),
        lambda writer, request: writer.close(),
    ],
)
async def test_an_answer_that_breaks_off_leaves_the_call_pending(then: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_RESPONSE_BYTES", 65536)
    async with answering(_initialized_then(then)) as (url, _), opened(url) as tools:
        with pytest.raises(ToolError) as raised:
            await call(tools, "add")
    assert raised.value.retryable
    assert "\n" not in str(raised.value)


async def test_an_error_of_the_protocol_is_an_outcome() -> None:
    def refuse(writer: asyncio.StreamWriter, request: bytes) -> None:
        error = {"code": -32602, "message": "no such\x1b[2J city"}
        said = {"jsonrpc": "2.0", "id": json.loads(request)["id"], "error": error}
        reply("400 Bad Request", json.dumps(said).encode())(writer, request)

    async with answering(_initialized_then(refuse)) as (url, _), opened(url) as tools:
        outcome = await call(tools, "add")
    assert (outcome.status, outcome.text, outcome.note) == ("error", "no such city", "JSON-RPC error -32602")


async def test_a_name_may_not_lead_to_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    async def getaddrinfo(self: Any, host: str, port: int, **_: Any) -> Any:
        return [(2, 1, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    async with answering(_initialized_then(reply("500 Oh"))) as (url, requests):
        elsewhere = url.replace("127.0.0.1", "tools.example.org")
        with pytest.raises(ToolError, match="127.0.0.1 is not a public address; name its network in allowed_networks"):
            async with opened(elsewhere):
                pass
        assert not requests
        async with opened(elsewhere, allowed_networks=["127.0.0.0/8"]):
            pass
        assert requests


async def test_a_missing_token_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DESK_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="environment variable DESK_TOKEN is not set"):
        async with opened("http://127.0.0.1:1/mcp", api_key_env="DESK_TOKEN"):
            pass
