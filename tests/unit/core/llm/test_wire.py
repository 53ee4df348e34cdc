"""Reading replies: whatever a server sends ends as an answer or as a classified failure."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from support.rollouts.model_pool import endpoint_at

from treadle.core.config import load_config, semantic_dump
from treadle.core.errors import ConfigError
from treadle.core.llm.config import EndpointSettings, ModelSettings, Sampling
from treadle.core.llm.endpoint import FAILURES_UNTIL_DOWN, Health
from treadle.core.llm.failures import Failure, error_message, failure_of, parse_retry_after
from treadle.core.llm.types import Completion, ToolCall
from treadle.core.llm.wire import parse_chat, parse_completion

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
LIKELY = st.fixed_dictionaries(
    {},
    optional={
        "choices": st.lists(
            st.fixed_dictionaries(
                {},
                optional={
                    "text": JSON,
                    "token_ids": st.none() | st.lists(st.integers(-2, 2**33) | JSON, max_size=4) | JSON,
                    "finish_reason": st.sampled_from(["stop", "length", "abort", None, 7]),
                    "stop_reason": JSON,
                    "message": st.none()
                    | st.fixed_dictionaries(
                        {},
                        optional={"content": JSON, "tool_calls": JSON, "function_call": JSON, "reasoning": JSON},
                    ),
                },
            ),
            max_size=2,
        )
        | JSON,
        "usage": st.none() | st.fixed_dictionaries({}, optional={"prompt_tokens": JSON, "completion_tokens": JSON}),
    },
)


@given(st.binary(max_size=60) | (LIKELY | JSON).map(orjson.dumps))
def test_any_reply_is_an_answer_or_a_failure(data: bytes) -> None:
    for parse in (parse_completion, parse_chat):
        try:
            answer = parse(data)
        except Failure as failure:
            assert failure.kind in ("malformed", "server")
        else:
            assert isinstance(answer.text, str) and answer.finish_reason in ("stop", "length")
            assert answer.token_ids is None or all(type(item) is int and 0 <= item < 2**31 for item in answer.token_ids)
            assert answer.prompt_tokens >= 0 and answer.completion_tokens >= 0


@given(st.integers(300, 599), st.binary(max_size=60) | JSON.map(orjson.dumps), st.text(max_size=6) | st.none())
def test_any_error_reply_has_a_class_and_a_printable_message(status: int, data: bytes, retry_after: str | None) -> None:
    failure = failure_of(status, {} if retry_after is None else {"Retry-After": retry_after}, data)
    assert failure.kind in ("rate_limit", "timeout", "server", "context", "refused")
    assert str(failure).isprintable() and len(str(failure)) < 500


@pytest.mark.parametrize("call", ['{"function": {"name": "f", "arguments": DEEP}}', "DEEP"])
@pytest.mark.parametrize("depth", [900, 1_010, 1_015, 100_000])
def test_tool_calls_of_any_depth_are_an_answer_or_a_failure(call: str, depth: int) -> None:
    call = call.replace("DEEP", "[" * depth + "]" * depth)
    reply = chat_reply({"content": "", "tool_calls": ["CALL"]}).replace(b'"CALL"', call.encode())
    with contextlib.suppress(Failure):
        assert parse_chat(reply).tool_calls


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 2048 tokens. However, you requested 3000 tokens.",
        "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
        "The prompt (total length 25938) is too long to fit into the model (context length 4096).",
        "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
        "the request exceeds the available context size, try increasing it",
    ],
)
def test_length_rejections_of_common_servers_are_recognised(message: str) -> None:
    data = orjson.dumps({"error": {"message": message, "type": "BadRequestError", "code": 400}})
    assert failure_of(400, {}, data).kind == "context"
    assert failure_of(400, {}, orjson.dumps({"error": {"message": "bad top_p"}})).kind == "refused"
    assert failure_of(400, {}, orjson.dumps({"error": {"code": "context_length_exceeded"}})).kind == "context"


def test_server_message_is_found_wherever_servers_put_it() -> None:
    assert error_message(b'{"error": {"message": "a"}}') == "a"
    assert error_message(b'{"error": "b"}') == "b"
    assert error_message(b'{"message": "c\\u001b[2J"}') == "c [2J"
    assert error_message(b"<html>d</html>") == "<html>d</html>"
    assert error_message(b"") == "(empty)"


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(None, None), ("3", 3.0), (" 0.5 ", 0.5), ("Wed, 21 Oct 2015 07:28:00 GMT", None), ("-1", None), ("inf", None)],
)
def test_retry_after_is_parsed_as_seconds(value: str | None, seconds: float | None) -> None:
    assert parse_retry_after(value) == seconds


@given(
    st.builds(
        Completion,
        text=st.text(),
        token_ids=st.none() | st.lists(st.integers(0, 2**31 - 1)).map(tuple),
        finish_reason=st.sampled_from(["stop", "length"]),
        stop_reason=st.none() | st.text(),
        prompt_tokens=st.integers(0, 10**6),
        completion_tokens=st.integers(0, 10**6),
        endpoint=st.just("http://localhost:1/v1"),
        seconds=st.floats(0, 1e6),
        retries=st.integers(0, 99),
    )
)
def test_completion_round_trips_through_the_journal(completion: Completion) -> None:
    assert Completion.from_json(completion.to_json()) == completion


async def test_idle_endpoint_that_refuses_rests_as_long_as_requested() -> None:
    endpoint = endpoint_at("http://localhost:1/v1", 16)
    assert endpoint.try_acquire() and endpoint.try_acquire()
    for _ in range(5):
        endpoint.refused(rest_until=9.0)
    assert (endpoint.paused_until, endpoint.limit) == (0.0, 1)
    endpoint.release()
    endpoint.refused(rest_until=9.0)
    assert (endpoint.paused_until, endpoint.limit) == (9.0, 1)


async def test_waiting_requests_are_served_in_order_and_released_on_endpoint_failure() -> None:
    endpoint = endpoint_at("http://localhost:1/v1", 1)
    assert endpoint.try_acquire()
    waiting = [asyncio.create_task(endpoint.acquire()) for _ in range(4)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    endpoint.release()
    await asyncio.sleep(0)
    assert waiting[1].done() and waiting[1].result() and not waiting[2].done()
    assert endpoint.failed(at_once=True) and endpoint.health is Health.DOWN
    assert await asyncio.gather(*waiting[2:]) == [False, False]
    endpoint.release()
    await endpoint.wait_idle()
    assert endpoint.in_flight == 0


async def test_endpoint_goes_down_after_several_failures_or_one_on_probation() -> None:
    endpoint = endpoint_at("http://localhost:1/v1", 1)
    for _ in range(FAILURES_UNTIL_DOWN - 1):
        assert not endpoint.failed(at_once=False)
    endpoint.succeeded(0.0)
    assert [endpoint.failed(at_once=False) for _ in range(FAILURES_UNTIL_DOWN)][-1]
    endpoint.readmit()
    assert endpoint.usable and endpoint.health is Health.TRIAL
    assert endpoint.failed(at_once=False) and not endpoint.usable
    endpoint.readmit()
    endpoint.succeeded(0.0)
    assert endpoint.health is Health.HEALTHY


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://host/v1", "http://", "http://user:key@host/v1", "http://host/v1?key=1"]
)
def test_bad_endpoint_urls_are_refused(url: str) -> None:
    with pytest.raises(ValidationError):
        EndpointSettings(url=url)


def test_only_what_changes_answers_counts_as_semantic() -> None:
    one = ModelSettings(model="m", endpoints=(EndpointSettings(url="http://a/v1/"),), max_in_flight=3)
    other = ModelSettings(model="m", endpoints=(EndpointSettings(url="http://b/v1"),), request_timeout_s=5)
    assert one.endpoints[0].url == "http://a/v1"
    assert semantic_dump(one) == semantic_dump(other)
    fields = {key: value for key, value in semantic_dump(one).items() if value is not None}
    assert fields == {"model": "m", "revision": "", "api": "completions", "extra_body": {}, "token_ids": "auto"}
    assert set(semantic_dump(Sampling())) == set(Sampling.model_fields)


def test_every_key_is_documented_and_unknown_ones_are_refused() -> None:
    for section in (Sampling, EndpointSettings, ModelSettings):
        assert all(section.descriptions().values())
    with pytest.raises(ConfigError, match="did you mean 'temperature'"):
        load_config(Sampling, data={"temprature": 1})


@pytest.mark.parametrize("data", [b"", b"[]", b"7", b"{}", b'{"text": "x"}', b'{"unknown": 1}', b'{"token_ids": 7}'])
def test_invalid_stored_answer_bytes_raise_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        Completion.from_json(data)


def chat_reply(message: object, finish: str = "tool_calls") -> bytes:
    usage = {"prompt_tokens": 5, "completion_tokens": 7}
    reply = {"choices": [{"index": 0, "finish_reason": finish, "message": message}], "usage": usage}
    return json.dumps(reply).encode()


GOOD_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"content": None, "tool_calls": [GOOD_CALL]}, [ToolCall("c1", "f", '{"a": 1}')]),
        ({"tool_calls": [GOOD_CALL]}, [ToolCall("c1", "f", '{"a": 1}')]),
        (
            {"content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"a": "\u00e9"}}}]},
            [ToolCall("", "f", '{"a": "\u00e9"}')],
        ),
        ({"content": "", "tool_calls": [{"id": 3, "function": {"name": "f"}}]}, [ToolCall("", "f", "")]),
        ({"content": None, "function_call": {"name": "f", "arguments": "{}"}}, [ToolCall("", "f", "{}")]),
        ({"content": "x", "tool_calls": None}, []),
        ({"content": "x", "tool_calls": []}, []),
        ({"tool_calls": []}, []),
        ({"reasoning_content": "It was cut off."}, []),
        ({"function_call": {"name": "f", "arguments": "{}"}}, [ToolCall("", "f", "{}")]),
    ],
)
def test_tool_calls_of_a_chat_answer(message: object, expected: list[ToolCall]) -> None:
    answer = parse_chat(chat_reply(message))
    assert list(answer.tool_calls) == expected and answer.finish_reason == "stop" and answer.own_end


@pytest.mark.parametrize(
    "message",
    [
        {"content": None, "tool_calls": {"id": "c"}},
        {"content": None, "tool_calls": ["f"]},
        {"content": None, "tool_calls": [{"id": "c", "function": {"arguments": "{}"}}]},
        {"content": None, "tool_calls": [{"id": "c", "function": {"name": 3}}]},
        {"content": "x", "reasoning_content": {"text": "y"}},
        {"role": "assistant"},
    ],
)
def test_tool_calls_that_are_none_are_malformed(message: object) -> None:
    with pytest.raises(Failure) as raised:
        parse_chat(chat_reply(message))
    assert raised.value.kind == "malformed"


def test_reasoning_of_a_chat_answer_is_kept_apart() -> None:
    for key in ("reasoning_content", "reasoning"):
        answer = parse_chat(chat_reply({"content": "7", key: "think \ud800"}, "stop"))
        assert (answer.text, answer.reasoning) == ("7", "think \ufffd")


def test_completion_with_tool_calls_survives_the_journal() -> None:
    calls = (ToolCall("c", "f", "{}"),)
    completion = Completion("", None, "stop", None, 1, 2, "u", 0.1, 0, tool_calls=calls, reasoning="r")
    assert Completion.from_json(completion.to_json()) == completion
