"""Additional keys and headers of a model's requests: what is sent, what is refused, and that secrets stay secret."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from support.rollouts.model_pool import SAMPLING, ask, settings
from support.servers.scripted_server import Fault, RecordedRequest, ScriptedServer

from treadle.core.config import semantic_dump
from treadle.core.errors import ConfigError, ModelError
from treadle.core.llm.config import ModelSettings
from treadle.core.llm.pool import ModelPool

EXTRA = {"reasoning_effort": "low", "provider": {"order": ["a", "b"]}}
SECRET = "sk-quite-secret"


async def chat(pool: ModelPool) -> None:
    await pool.chat([{"role": "user", "content": "q"}], SAMPLING, seed=1, session="s", deadline=float("inf"))


@pytest.mark.parametrize("api", ["completions", "chat"])
async def test_additions_are_in_every_request(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATE_KEY", SECRET)
    async with ScriptedServer(lambda _: "ok") as server:
        additions = {"extra_body": EXTRA, "headers": {"X-Org": "lab"}, "headers_env": {"Api-Key": "GATE_KEY"}}
        async with ModelPool("m", settings(server, api=api, **additions)) as pool:
            await pool.check()
            await (ask(pool) if api == "completions" else chat(pool))
        asked = [*server.requests, *server.probes]
    assert len(asked) >= 2
    for request in asked:
        assert request.body.items() >= EXTRA.items()
        assert (request.headers["X-Org"], request.headers["Api-Key"]) == ("lab", SECRET)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"extra_body": {"max_tokens": 5}}, "max_tokens is a sampling key"),
        ({"extra_body": {"seed": 5}}, "Treadle sets seed itself"),
        ({"extra_body": {"stream": True}}, "one whole answer per request; leave out stream"),
        ({"extra_body": {"x": {"y": [float("nan")]}}}, "x holds a number that JSON cannot carry"),
        ({"extra_body": {"chat_template_kwargs": {}}}, 'has no effect with api = "completions"'),
        ({"headers": {"X Y": "a"}}, "'X Y' is no name of a header"),
        ({"headers": {"content-type": "a"}}, "Treadle sets the header content-type itself"),
        ({"headers": {"X-Org": "a\nb"}}, "other than printable ASCII"),
        ({"headers": {"X-A": "1"}, "headers_env": {"x-a": "A"}}, "the header x-a is given twice"),
        ({"headers": {"X-Api-Key": SECRET}}, "carries a secret: put it into an environment variable"),
        ({"headers_env": {"X-A": SECRET}}, "the name of an environment variable"),
        (
            {"headers_env": {"Authorization": "A"}, "endpoints": [{"url": "http://h/v1", "api_key_env": "B"}]},
            "so does the api_key_env",
        ),
    ],
)
def test_wrong_additions_are_refused_by_name(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as refused:
        ModelSettings.model_validate({"model": "m", **keys})
    (error,) = refused.value.errors(include_input=False)
    assert said in error["msg"] and SECRET not in error["msg"]


def test_extra_keys_change_results_and_headers_do_not() -> None:
    plain = ModelSettings(model="m")
    assert semantic_dump(plain) == semantic_dump(ModelSettings(model="m", headers={"X-Org": "lab"}))
    assert semantic_dump(plain) != semantic_dump(ModelSettings(model="m", extra_body={"reasoning_effort": "low"}))


async def test_secret_of_a_header_is_masked_wherever_a_server_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATE_KEY", f"Token {SECRET}")

    def repeat(request: RecordedRequest) -> Fault:
        return Fault.status(403, f"no access with {request.headers['X-Gate']}")

    async with (
        ScriptedServer(repeat) as server,
        ModelPool("m", settings(server, headers_env={"X-Gate": "GATE_KEY"})) as pool,
    ):
        with pytest.raises(ModelError) as refused:
            await ask(pool)
    assert SECRET not in str(refused.value) and "[key]" in str(refused.value)


async def test_header_without_its_variable_is_refused_before_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GATE_KEY", raising=False)
    async with ScriptedServer() as server:
        with pytest.raises(ConfigError, match=r"models\.m: header X-Gate needs a key.*GATE_KEY is not set"):
            async with ModelPool("m", settings(server, headers_env={"X-Gate": "GATE_KEY"})):
                pass
        assert server.requests == []


async def test_refused_extra_key_is_named_in_the_preflight() -> None:
    said = "Unrecognized request argument supplied: reasoning_effort"
    async with (
        ScriptedServer(lambda _: Fault.status(400, said)) as server,
        ModelPool("m", settings(server, api="chat", extra_body=EXTRA)) as pool,
    ):
        with pytest.raises(ConfigError, match="reasoning_effort is in extra_body"):
            await pool.check()
