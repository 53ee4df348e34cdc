"""The check of a model's servers before anything is asked."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.rollouts.model_pool import ask, endless, recorder, settings
from support.servers.scripted_server import ByteCodec, Fault, RecordedRequest, ScriptedServer, Stops

from treadle.core.errors import ConfigError, EndpointUnavailable, ModelError
from treadle.core.llm.config import Sampling
from treadle.core.llm.pool import ModelPool
from treadle.core.llm.stops import stop_within, style_of
from treadle.core.llm.wire import Answer


async def test_check_reports_server_capabilities() -> None:
    async with (
        ScriptedServer(endless, max_model_len=4096) as first,
        ScriptedServer(endless, max_model_len=2048) as second,
        ModelPool("policy", settings(first, second)) as pool,
    ):
        facts = await pool.check()
    assert (facts.model, facts.max_model_len, facts.token_ids) == ("scripted", 2048, True)
    assert facts.endpoints == (first.url, second.url)
    assert [item.body["max_tokens"] for item in first.requests] == [1]


async def test_check_detects_servers_without_ids() -> None:
    async with ScriptedServer(endless, ids=False) as server:
        async with ModelPool("policy", settings(server)) as pool:
            assert not (await pool.check()).token_ids
            assert (await ask(pool)).token_ids is None
        async with ModelPool("policy", settings(server, token_ids="required")) as pool:
            with pytest.raises(ConfigError, match="does not return token ids"):
                await pool.check()
            with pytest.raises(ModelError, match="returned no token ids"):
                await ask(pool)


def refuse_ids(recorded: RecordedRequest) -> str | Fault:
    return Fault.status(400, "prompt must be a string") if isinstance(recorded.prompt, list) else "ok"


async def test_check_falls_back_to_text_if_ids_are_refused() -> None:
    async with ScriptedServer(refuse_ids) as server, ModelPool("policy", settings(server)) as pool:
        assert not (await pool.check()).token_ids


async def test_check_tolerates_transient_faults() -> None:
    asked, sleep = recorder()
    async with (
        ScriptedServer([Fault.status(500), Fault("reset"), Fault("malformed"), "ok"]) as server,
        ModelPool("policy", settings(server), sleep=sleep) as pool,
    ):
        assert (await pool.check()).token_ids
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"model": "other"}, "does not serve model 'other'; it serves: scripted"),
        ({"max_model_len": 9000}, "serves a window of 4096 tokens, fewer than max_model_len = 9000"),
    ],
)
async def test_check_refuses_a_server_that_disagrees(overrides: dict[str, object], message: str) -> None:
    async with ScriptedServer(endless) as server, ModelPool("policy", settings(server, **overrides)) as pool:
        with pytest.raises(ConfigError, match=message):
            await pool.check()


async def test_check_reports_a_listed_model_without_completions_as_chat_only() -> None:
    async with ScriptedServer([Fault.status(404)] * 2) as server, ModelPool("policy", settings(server)) as pool:
        with pytest.raises(ConfigError, match="lists the model, but .*/completions answers HTTP 404: .* chat-only"):
            await pool.check()


async def test_check_uses_the_chat_route_of_chat_only_services_with_openai_keys() -> None:
    async with (
        ScriptedServer(endless, chat_only=True) as server,
        ModelPool("judge", settings(server, api="chat")) as pool,
    ):
        assert not (await pool.check(OtherBytes(0))).token_ids
        sampling = Sampling(top_k=-1, max_tokens=5)
        messages = [{"role": "user", "content": "Same?"}]
        await pool.chat(
            messages, sampling, seed=3, session="", deadline=asyncio.get_running_loop().time() + 20, stop=(";",)
        )
    probe, asked = server.requests
    assert {probe.path, asked.path} == {"/v1/chat/completions"}
    assert probe.body["max_tokens"] == 1 and asked.body["stop"] == [";"]
    assert set(asked.body) == {"model", "messages", "max_tokens", "temperature", "top_p", "seed", "stop"}


async def test_check_reports_a_server_without_chat() -> None:
    async with (
        ScriptedServer([Fault.status(404)]) as server,
        ModelPool("judge", settings(server, api="chat")) as pool,
    ):
        with pytest.raises(ConfigError, match='/chat/completions answers HTTP 404; set api = "completions"'):
            await pool.check()


class OtherBytes(ByteCodec):
    """As many ids as the server's, each replaced by another."""

    folder = Path("/models/other")
    vocab_size = 256
    added_tokens: frozenset[str] = frozenset()

    def __init__(self, shift: int) -> None:
        self._shift = shift

    def encode(self, text: str) -> list[int]:
        return [(item + self._shift) % 256 for item in super().encode(text)]


@pytest.mark.parametrize("bos", [(), (256,)])
async def test_check_compares_server_ids_of_a_text_with_ours(bos: tuple[int, ...]) -> None:
    async with (
        ScriptedServer(endless, tells_prompts=True, bos=bos) as server,
        ModelPool("policy", settings(server)) as pool,
    ):
        assert (await pool.check(OtherBytes(0))).token_ids
        with pytest.raises(
            ConfigError, match=f"endpoint {server.url} tokenizes a text differently from the tokenizer in /models/other"
        ):
            await pool.check(OtherBytes(1))


@pytest.mark.parametrize(("tells_prompts", "token_ids"), [(False, "auto"), (True, "off")])
async def test_check_compares_no_ids_if_none_are_returned_or_used(tells_prompts: bool, token_ids: str) -> None:
    async with (
        ScriptedServer(endless, tells_prompts=tells_prompts) as server,
        ModelPool("policy", settings(server, token_ids=token_ids)) as pool,
    ):
        await pool.check(OtherBytes(1))
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("stops", "style"),
    [(None, "kept"), ("kept", "kept"), ("named", "named"), ("dropped", "dropped"), ("ignored", "ignored"),
     ("mute", "unknown")],
)  # fmt: skip
async def test_check_detects_how_each_server_handles_stop_strings(stops: Stops | None, style: str) -> None:
    async with (
        ScriptedServer(endless, stops=stops) as server,
        ScriptedServer(endless) as other,
        ModelPool("policy", settings(server, other)) as pool,
    ):
        assert (await pool.check()).stops == {server.url: style, other.url: "kept"}
        assert len(server.probes) == (2 if style != "unknown" else 3)
        assert [probe.body["stop"] for probe in other.probes] == [[], ["e"]]
        completion = await ask(pool)
    assert completion.stop_dropped == (style == "dropped" and completion.endpoint == server.url)


@pytest.mark.parametrize(
    ("free", "stop", "said", "style"),
    [
        (" seven, eight", "e", Answer(" seven, eight", None, "length", None, 9, 12), "ignored"),
        (" seven, eight", "e", Answer("se", None, "stop", None, 9, 12), "kept"),
        (" seven, eight", "e", Answer("s", None, "stop", None, 9, 12), "dropped"),
        (" seven, eight", "e", Answer(" s", None, "stop", "e", 9, 12), "named"),
        # Something else each time, an end of its own, or cut off: it shows nothing.
        (" seven, eight", "e", Answer(" you", None, "stop", None, 9, 12), "unknown"),
        (" seven, eight", "e", Answer(" s", None, "stop", None, 9, 12, own_end=True), "unknown"),
        (" seven, eight", "e", Answer(" s", None, "length", None, 9, 12), "unknown"),
    ],
)
def test_stop_style_is_inferred_from_one_answer_with_and_one_without_a_stop(
    free: str, stop: str, said: Answer, style: str
) -> None:
    assert (stop_within(free), style_of(free, stop, said)) == (stop, style)
    assert stop_within("") is stop_within(" 7 7 ") is stop_within("...") is None


async def test_check_names_an_unreachable_endpoint() -> None:
    async with ScriptedServer(endless) as server, ModelPool("policy", settings(server)) as pool:
        await server.stop_listening()
        with pytest.raises(EndpointUnavailable, match=f"models.policy: endpoint {server.url} cannot be reached"):
            await pool.check()
    with pytest.raises(ConfigError, match="models.policy has no endpoints"):
        await ModelPool("policy", settings()).__aenter__()
