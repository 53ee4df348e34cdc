"""Keys of endpoints are sent, and neither shown nor taken from an answer."""

from __future__ import annotations

import pytest
from support.rollouts.model_pool import ask, settings
from support.servers.scripted_server import Fault, ScriptedServer

from treadle.core.errors import ConfigError, ModelError
from treadle.core.llm.config import EndpointSettings
from treadle.core.llm.pool import ModelPool


async def test_key_is_sent_but_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_MODEL_KEY", "sk-hidden")
    async with ScriptedServer([Fault.status(401, "bad key")]) as server:
        keyed = settings(server).model_copy(
            update={"endpoints": (EndpointSettings(url=server.url, api_key_env="TEST_MODEL_KEY"),)}
        )
        async with ModelPool("policy", keyed) as pool:
            with pytest.raises(ModelError, match="api_key_env") as caught:
                await ask(pool)
        assert server.requests[0].headers["Authorization"] == "Bearer sk-hidden"
        assert "sk-hidden" not in str(caught.value) + repr(keyed)
        monkeypatch.delenv("TEST_MODEL_KEY")
        with pytest.raises(ConfigError, match="TEST_MODEL_KEY is not set"):
            await ModelPool("policy", keyed).__aenter__()


@pytest.mark.parametrize("spelled", ["sk-hidden/key", "sk\\u002dhidden\\/key", "sk-h\\u0069dde\\u006E/key"])
async def test_completion_that_echoes_the_key_is_rejected(monkeypatch: pytest.MonkeyPatch, spelled: str) -> None:
    monkeypatch.setenv("TEST_MODEL_KEY", "sk-hidden/key")
    good = '{"choices": [{"text": "%s", "finish_reason": "stop"}], "usage": {"prompt_tokens": 1}}'
    leak = Fault("status", 200, good % f"your key is {spelled}")
    async with ScriptedServer([leak, "fine", leak, leak]) as server:
        endpoints = (EndpointSettings(url=server.url, api_key_env="TEST_MODEL_KEY"),)
        keyed = settings(server, retry_limit=1).model_copy(update={"endpoints": endpoints})
        async with ModelPool("policy", keyed) as pool:
            assert (await ask(pool)).text == "fine" and pool.stats.retries == {"malformed": 1}
            with pytest.raises(ModelError, match="contains the API key") as caught:
                await ask(pool)
            assert "hidden" not in str(caught.value)


async def test_key_placeholder_may_be_a_word_of_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_MODEL_KEY", "EMPTY")
    async with ScriptedServer(["the set is EMPTY"]) as server:
        endpoints = (EndpointSettings(url=server.url, api_key_env="TEST_MODEL_KEY"),)
        async with ModelPool("policy", settings(server).model_copy(update={"endpoints": endpoints})) as pool:
            assert (await ask(pool)).text == "the set is EMPTY"
