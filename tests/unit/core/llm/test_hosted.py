"""Refusals of hosted services, each with its own wording, and how the preflight detects them."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rollouts.model_pool import endless, settings
from support.servers.hosted_service import fussy
from support.servers.scripted_server import Fault, Item, RecordedRequest, ScriptedServer

from treadle.core.errors import ConfigError, ContextTooLong
from treadle.core.llm.config import Sampling
from treadle.core.llm.hosted import refused_keys
from treadle.core.llm.pool import ModelPool
from treadle.core.llm.wire import chat_body

MESSAGES = [{"role": "user", "content": "Same?"}]
LIMIT = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
REFUSALS: list[tuple[int, Any, tuple[str, ...]]] = [
    (400, {"error": {"message": LIMIT, "param": "max_tokens", "code": "unsupported_parameter"}}, ("max_tokens",)),
    (400, {"message": "Unsupported parameter: 'stop' is not supported with this model."}, ("stop",)),
    (400, {"error": {"message": 'Unrecognized request argument supplied: "seed"'}}, ("seed",)),
    (422, {"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs"}]}, ("seed",)),
    (400, {"message": "Unsupported value: 'temperature' does not support 0.5 with this model."}, ("temperature",)),
    (400, {"message": "`temperature` and `top_p` cannot both be specified for this model."}, ("top_p", "temperature")),
    # An unknown limit has no substitute, and other errors are not refusals of a parameter.
    (400, {"message": "Unsupported parameter: 'max_tokens'."}, ()),
    (400, {"message": "This content is not supported, please stop."}, ()),
    (400, {"message": "max_tokens is too large: 99999"}, ()),
    (404, {"message": "'stop' is not supported"}, ()),
    (200, {"choices": [{"message": {"content": "'stop' is not supported"}}]}, ()),
]

BODY = orjson.loads(chat_body("m", MESSAGES, Sampling(max_tokens=1), 3, ("</end>",), chat_only=True))
ECHO = orjson.dumps(BODY).decode()
WARM = "Unsupported value: 'temperature' does not support 0.5."
SEED = {"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not permitted", "input": 3}
POINTED: list[tuple[Any, tuple[str, ...]]] = [
    # The key that the reply points to counts, whatever its words and its other complaints name.
    ({"error": {"message": f"{WARM} Nor 'stop', 'seed' and top_p.", "param": "temperature"}}, ("temperature",)),
    ({"detail": [SEED, {"type": "less_than", "loc": ["body", "top_p"], "msg": "Be less than 'stop'"}]}, ("seed",)),
    ({"object": "error", "message": {"detail": [SEED]}, "param": None}, ("seed",)),
    ({"detail": [SEED | {"loc": ["body", "stop", "list[str]"]}, SEED]}, ("stop", "seed")),
    ({"error": {"message": LIMIT + " Not 'stop'.", "param": "max_tokens"}}, ("max_tokens",)),
    ({"error": {"message": "Unsupported: no 'stop' here", "param": "messages"}}, ()),
    # If it names no parameter, its message does.
    ({"error": {"message": WARM, "param": None}}, ("temperature",)),
    ({"error": {"message": WARM, "param": "None"}}, ("temperature",)),
    ({"error": {"message": WARM, "param": {"of": ["chat"]}}}, ("temperature",)),
    # A request that it repeats names nothing.
    ({"error": {"message": WARM}, "request": BODY}, ("temperature",)),
    ({"error": {"message": WARM, "param": "temperature"}, "body": BODY}, ("temperature",)),
    ({"detail": [SEED | {"input": BODY}]}, ("seed",)),
    ({"message": f"{WARM} You sent {ECHO}."}, ("temperature",)),
    ({"message": f"You sent {BODY!r}. {WARM}"}, ("temperature",)),
    ({"message": f"Error - {{'error': {{'message': \"{WARM}\"}}, 'request': {BODY!r}}}"}, ("temperature",)),
    ({"message": f"{WARM} You sent {ECHO[:-9]}"}, ("temperature",)),
    ({"error": {"message": f"{WARM} Nor 'stop'. You sent {ECHO[:-9]}", "param": "temperature"}}, ("temperature",)),
    ({"message": f"Unknown request {ECHO}"}, ()),
    # What only looks like one is a list of complaints.
    ({"messages": [WARM]}, ("temperature",)),
]
REFUSALS += [(400, reply, keys) for reply, keys in POINTED]


@pytest.mark.parametrize(("status", "reply", "keys"), REFUSALS)
def test_refusal_names_the_optional_parameters(status: int, reply: Any, keys: tuple[str, ...]) -> None:
    assert refused_keys(status, orjson.dumps(reply)) == keys


@given(st.sampled_from([400, 422]), st.binary())
def test_any_reply_can_be_parsed_for_refusals(status: int, data: bytes) -> None:
    assert set(refused_keys(status, data)) <= {"max_tokens", "stop", "seed", "top_p", "temperature"}


def test_sampling_values_are_omitted_only_if_equal_to_service_defaults() -> None:
    def keys(refused: tuple[str, ...], **changes: float) -> set[str]:
        body = chat_body("m", MESSAGES, Sampling(top_p=1.0, **changes), 3, ("x",), chat_only=True, refused=refused)
        return set(orjson.loads(body)) - {"model", "messages"}

    every = ("max_tokens", "seed", "stop", "temperature", "top_p")
    assert keys(()) == {"max_tokens", "temperature", "top_p", "seed", "stop"}
    assert keys(every) == {"max_completion_tokens"}
    assert keys(every, temperature=0.0) == {"max_completion_tokens", "temperature"}


def test_service_gets_no_more_stop_strings_than_openai_accepts() -> None:
    stops = tuple(f"</{name}>" for name in "abcde")
    body = orjson.loads(chat_body("m", MESSAGES, Sampling(), 3, stops, chat_only=True))
    assert body["stop"] == ["</a>", "</b>", "</c>", "</d>"]
    assert orjson.loads(chat_body("m", MESSAGES, Sampling(), 3, stops))["stop"] == list(stops)


async def test_preflight_finds_refused_parameters_and_later_requests_omit_them() -> None:
    asked: list[str] = []
    async with (
        ScriptedServer(fussy(endless, asked), chat_only=True) as server,
        ModelPool("judge", settings(server, api="chat")) as pool,
    ):
        assert (await pool.check()).refused_keys == ("max_tokens", "stop", "temperature", "top_p")
        probes = len(server.requests)
        deadline = asyncio.get_running_loop().time() + 20
        neutral = Sampling(temperature=1.0, top_p=1.0, max_tokens=9)
        await pool.chat(MESSAGES, neutral, seed=3, session="", deadline=deadline, stop=("x",))
        assert server.requests[-1].body["max_completion_tokens"] == 9
        with pytest.raises(ContextTooLong, match="output limit was reached"):
            tight = neutral.model_copy(update={"max_tokens": 1})
            await pool.chat(MESSAGES, tight, seed=3, session="", deadline=deadline)
    # One request for each key that it refuses and one that is answered, if only by "too few tokens".
    assert (len(asked), probes, len(server.requests)) == (4, 5, 7)


async def test_refusal_that_echoes_the_request_drops_no_unrelated_parameter() -> None:
    def warm_only(request: RecordedRequest) -> Item:
        if request.body.get("temperature", 1) == 1:
            return "ok"
        return Fault.status(400, f"{WARM} Request: {orjson.dumps(request.body).decode()}")

    async with (
        ScriptedServer(warm_only, chat_only=True) as server,
        ModelPool("judge", settings(server, api="chat")) as pool,
    ):
        assert (await pool.check()).refused_keys == ("temperature",)


async def test_two_services_of_a_model_are_called_without_what_either_refuses() -> None:
    def no_seed(request: RecordedRequest) -> Item:
        return Fault.status(400, "unknown key 'seed'") if "seed" in request.body else "ok"

    async with (
        ScriptedServer(fussy(endless, []), chat_only=True) as first,
        ScriptedServer(no_seed, chat_only=True) as second,
        ModelPool("judge", settings(first, second, api="chat")) as pool,
    ):
        assert (await pool.check()).refused_keys == ("max_tokens", "seed", "stop", "temperature", "top_p")


async def test_service_that_refuses_everything_is_quoted() -> None:
    def reply(request: RecordedRequest) -> Item:
        return Fault.status(400, "'stop', 'seed', 'top_p' and 'temperature' are not supported, and you are banned")

    async with (
        ScriptedServer(reply, chat_only=True) as server,
        ModelPool("judge", settings(server, api="chat")) as pool,
    ):
        with pytest.raises(ConfigError, match="you are banned"):
            await pool.check()
    assert len(server.requests) == 5


async def test_service_without_a_model_list_reports_chat_only() -> None:
    refusal = Fault.status(400, "This is a chat model and not supported in the v1/completions endpoint.")
    async with ScriptedServer([refusal] * 2) as server, ModelPool("policy", settings(server)) as pool:
        with pytest.raises(ConfigError, match='if it is chat-only, set api = "chat"'):
            await pool.check()


async def test_service_that_refuses_tools_is_named_before_the_run() -> None:
    def reply(request: RecordedRequest) -> Item:
        words = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
        return Fault.status(400, words) if "tools" in request.body else "ok"

    async with (
        ScriptedServer(reply, chat_only=True) as server,
        ModelPool("agent", settings(server, api="chat")) as pool,
    ):
        await pool.check()
        with pytest.raises(ConfigError, match="refuses tools: .*enable-auto-tool-choice.*dialect = "):
            await pool.check(calls_tools=True)


async def test_keys_of_tool_calls_that_a_service_refuses_are_left_out() -> None:
    def reply(request: RecordedRequest) -> Item:
        if "parallel_tool_calls" in request.body:
            return Fault.status(422, "Unsupported parameter: 'parallel_tool_calls'")
        return "ok"

    async with (
        ScriptedServer(reply, chat_only=True) as server,
        ModelPool("agent", settings(server, api="chat")) as pool,
    ):
        assert (await pool.check(calls_tools=True)).refused_keys == ("parallel_tool_calls",)
        tool = {"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}
        deadline = asyncio.get_running_loop().time() + 20
        neutral = Sampling(temperature=1.0, top_p=1.0, max_tokens=9)
        await pool.chat(MESSAGES, neutral, seed=3, session="", deadline=deadline, tools=[tool])
        body = server.requests[-1].body
        assert body["tools"] == [tool] and body["tool_choice"] == "auto" and "parallel_tool_calls" not in body
