"""The official `openai` client talks to the tutor."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest
from openai import AsyncOpenAI

from treadle.demo.tutor.server import TutorServer
from treadle.demo.tutor.settings import MODELS, TutorSettings

QUESTION = [{"role": "user", "content": "What is 6 * 7?"}]
MODEL = MODELS[0]


@pytest.fixture
async def client() -> AsyncIterator[AsyncOpenAI]:
    async with (
        TutorServer(TutorSettings()) as tutor,
        AsyncOpenAI(base_url=tutor.url, api_key="EMPTY", max_retries=0, timeout=60.0) as client,
    ):
        yield client


async def test_lists_models(client: AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == list(MODELS)
    assert (await client.models.retrieve(MODEL)).id == MODEL
    with pytest.raises(openai.NotFoundError) as refused:
        await client.models.retrieve("other")
    assert refused.value.type == "NotFoundError"


async def test_chat_says_the_same_with_and_without_streaming(client: AsyncOpenAI) -> None:
    asked = {"model": MODEL, "messages": QUESTION, "seed": 3, "max_tokens": 200}
    whole = await client.chat.completions.create(**asked)  # type: ignore[call-overload]
    (choice,) = whole.choices
    assert choice.message.role == "assistant" and choice.message.content and choice.finish_reason in ("stop", "length")
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    stream = await client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})  # type: ignore[call-overload]
    chunks = [chunk async for chunk in stream]
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert said == choice.message.content and chunks[-1].usage == whole.usage
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == choice.finish_reason


async def test_completions_say_the_same_with_and_without_streaming(client: AsyncOpenAI) -> None:
    asked = {"model": MODEL, "prompt": "Question: 6 * 7?", "seed": 3, "max_tokens": 100, "stop": ["</think>"]}
    whole = await client.completions.create(**asked)  # type: ignore[call-overload]
    stream = await client.completions.create(**asked, stream=True)  # type: ignore[call-overload]
    assert "".join([chunk.choices[0].text async for chunk in stream]) == whole.choices[0].text
    assert whole.usage.completion_tokens > 0


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"model": "other"}, openai.NotFoundError),
        ({"n": 2}, openai.BadRequestError),
        ({"messages": []}, openai.BadRequestError),
        ({"max_tokens": 10**7}, openai.BadRequestError),
        ({"tools": [{"type": "function", "function": {"name": "search"}}]}, openai.BadRequestError),
    ],
)
async def test_errors_have_the_clients_class_and_the_servers_words(
    client: AsyncOpenAI, changes: dict[str, object], error: type[openai.APIStatusError]
) -> None:
    with pytest.raises(error) as refused:
        await client.chat.completions.create(**{"model": MODEL, "messages": QUESTION, **changes})  # type: ignore[call-overload]
    assert isinstance(refused.value.body, dict) and refused.value.body["message"] in refused.value.message


@pytest.mark.parametrize(("fault", "error"), [("429", openai.RateLimitError), ("500", openai.InternalServerError)])
async def test_faults_have_the_clients_class(fault: str, error: type[openai.APIStatusError]) -> None:
    settings = TutorSettings(faults={fault: 1.0})  # type: ignore[dict-item]
    async with TutorServer(settings) as tutor, AsyncOpenAI(base_url=tutor.url, api_key="E", max_retries=0) as client:
        with pytest.raises(error):
            await client.chat.completions.create(model=MODEL, messages=QUESTION)  # type: ignore[arg-type]


async def test_missing_routes_are_errors_in_the_same_form(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        await client.embeddings.create(model=MODEL, input="x")
    assert isinstance(refused.value.body, dict) and "no route" in refused.value.body["message"]
