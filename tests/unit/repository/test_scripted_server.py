"""The scripted server does what tests rely on."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from support.servers.scripted_server import ByteCodec, Fault, RecordedRequest, Reply, ScriptedServer


async def ask(server: ScriptedServer, **body: object) -> tuple[int, dict[str, object]]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{server.url}/completions", json={"model": "scripted", **body}) as response,
    ):
        return response.status, await response.json()


async def test_replies_follow_the_script_and_requests_are_recorded() -> None:
    async with ScriptedServer(["one </search> tail", Reply("two", finish_reason="length", without_ids=True)]) as server:
        ids = ByteCodec().encode("prompt")
        status, first = await ask(server, prompt=ids, return_token_ids=True)
        _, second = await ask(server, prompt="text", return_token_ids=True)
        status_over, _ = await ask(server, prompt="text")
    assert (status, status_over, server.overrun) == (200, 500, 1)
    assert first["choices"][0]["text"] == "one </search> tail"  # type: ignore[index]
    assert first["choices"][0]["token_ids"] == ByteCodec().encode("one </search> tail")  # type: ignore[index]
    assert "token_ids" not in second["choices"][0]  # type: ignore[index]
    assert [request.text for request in server.requests] == ["prompt", "text", "text"]
    assert server.requests[0].prompt == ids


async def test_function_scripts_replies_and_stops_can_be_applied() -> None:
    async def script(request: RecordedRequest) -> str:
        return f"{request.text}</search> more"

    async with ScriptedServer(script, stops="kept") as server:
        _, reply = await ask(server, prompt="q", stop=["</python>", "</search>"])
    assert reply["choices"][0]["text"] == "q</search>"  # type: ignore[index]
    assert reply["choices"][0]["stop_reason"] == "</search>"  # type: ignore[index]


@pytest.mark.parametrize("kind", ["reset", "reset_midway"])
async def test_reset_reaches_the_client(kind: str) -> None:
    async with ScriptedServer([Fault(kind)]) as server:  # type: ignore[arg-type]
        with pytest.raises((aiohttp.ClientError, ConnectionError)):
            await ask(server, prompt="q")


async def test_status_faults_contain_retry_after_and_malformed_bodies_are_malformed() -> None:
    script = [Fault.status(429, retry_after_s=2), Fault("malformed")]
    async with ScriptedServer(script) as server, aiohttp.ClientSession() as session:
        async with session.post(f"{server.url}/completions", json={"prompt": "q"}) as response:
            assert (response.status, response.headers["Retry-After"]) == (429, "2")
        async with session.post(f"{server.url}/completions", json={"prompt": "q"}) as response:
            assert response.status == 200
            with pytest.raises(ValueError):
                await response.json()


async def test_hang_ends_with_the_server() -> None:
    async with ScriptedServer([Fault("hang")]) as server:
        task = asyncio.create_task(ask(server, prompt="q"))
        while not server.requests:
            await asyncio.sleep(0)
    with pytest.raises((aiohttp.ClientError, ConnectionError, ValueError)):
        await task


async def test_stopped_server_refuses_and_restarts_on_its_port() -> None:
    async with ScriptedServer(["again"]) as server:
        url = server.url
        await server.stop_listening()
        with pytest.raises(aiohttp.ClientConnectionError):
            await ask(server, prompt="q")
        await server.start_listening()
        assert server.url == url
        status, _ = await ask(server, prompt="q")
    assert status == 200
