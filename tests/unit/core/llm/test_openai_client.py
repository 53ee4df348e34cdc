"""The official `openai` client talks to the servers that tests play, so these answer in the API's form."""

from __future__ import annotations

import json

import openai
import pytest
from openai import AsyncOpenAI
from support.model_servers.played_servers import SERVERS, WINDOW, PlayedServer, Player
from support.servers.scripted_server import Fault, Reply, ScriptedServer

QUESTION = [{"role": "user", "content": "Who wrote Vorna?"}]
TOOLS = [
    {"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {"query": {}}}}}
]
CALL = Reply("", calls=(("search", {"query": "Vorna"}),))
every_server = pytest.mark.parametrize("played", SERVERS, ids=lambda played: played.name)


def client_of(server: ScriptedServer) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=server.url, api_key="EMPTY", max_retries=0, timeout=60.0)


@every_server
async def test_models_chat_and_completions(played: PlayedServer) -> None:
    async with Player(played, lambda request: Reply("Ilme wrote it.")) as server, client_of(server) as client:
        assert [model.id async for model in client.models.list()] == [server.model]
        chat = await client.chat.completions.create(model=server.model, messages=QUESTION)  # type: ignore[arg-type]
        assert chat.choices[0].message.content == "Ilme wrote it."
        assert chat.choices[0].finish_reason == played.finish
        assert (chat.usage is None) == (played.usage is None)
        if not played.completes:
            with pytest.raises(openai.NotFoundError):
                await client.completions.create(model=server.model, prompt="Vorna was")
            return
        text = await client.completions.create(model=server.model, prompt="Vorna was")
        assert text.choices[0].text == "Ilme wrote it." and text.usage is not None
        assert text.usage.total_tokens == text.usage.prompt_tokens + text.usage.completion_tokens


@every_server
async def test_tool_calls(played: PlayedServer) -> None:
    async with Player(played, lambda request: CALL) as server, client_of(server) as client:
        chat = await client.chat.completions.create(model=server.model, messages=QUESTION, tools=TOOLS)  # type: ignore[call-overload]
        (call,) = chat.choices[0].message.tool_calls
        arguments = call.function.arguments
        assert call.function.name == "search" and chat.choices[0].finish_reason == played.call_finish
        assert (arguments if played.arguments == "object" else json.loads(arguments)) == {"query": "Vorna"}
        (sent,) = server.requests
        assert sent.body["tools"] == TOOLS


@every_server
async def test_refusals_have_the_clients_class(played: PlayedServer) -> None:
    async with Player(played, lambda request: Reply("x")) as server, client_of(server) as client:
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            await client.chat.completions.create(model="other", messages=QUESTION)  # type: ignore[arg-type]
        long = [{"role": "user", "content": "x" * 9 * WINDOW}]
        with pytest.raises((openai.BadRequestError, openai.UnprocessableEntityError)) as refused:
            await client.chat.completions.create(model=server.model, messages=long)  # type: ignore[arg-type]
        assert refused.value.status_code == played.too_long[0]


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault.status(429), openai.RateLimitError),
        (Fault.status(500), openai.InternalServerError),
        (Fault("reset"), openai.APIConnectionError),
    ],
)
async def test_faults_have_the_clients_class(fault: Fault, error: type[openai.APIError]) -> None:
    async with ScriptedServer([fault]) as server, client_of(server) as client:
        with pytest.raises(error):
            await client.chat.completions.create(model=server.model, messages=QUESTION)  # type: ignore[arg-type]
