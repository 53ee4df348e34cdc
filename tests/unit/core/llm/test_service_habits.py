"""What services and the proxies before them do that OpenAI's API does not say: each is read for what it means."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping
from typing import Any

import pytest
from aiohttp import web
from support.rollouts.model_pool import SAMPLING, endless, settings
from support.servers.scripted_server import Fault, Item, RecordedRequest, Reply, ScriptedServer

from treadle.core.errors import ModelError
from treadle.core.llm.failures import Failure, error_message, failure_of
from treadle.core.llm.pool import ModelPool
from treadle.core.llm.wire import parse_chat


def said(message: object, finish: object = "stop", **more: Any) -> bytes:
    usage = {"prompt_tokens": 5, "completion_tokens": 7}
    return json.dumps({"choices": [{"finish_reason": finish, "message": message}], "usage": usage, **more}).encode()


@pytest.mark.parametrize(
    ("finish", "read"),
    [
        ("STOP", "stop"), ("MAX_TOKENS", "length"), ("SAFETY", "content_filter"), ("refusal", "content_filter"),
        ("model_context_window_exceeded", "length"), ("model_length", "length"), ("RECITATION", "content_filter"),
    ],
)  # fmt: skip
def test_finish_reasons_of_other_apis_are_read(finish: str, read: str) -> None:
    answer = parse_chat(said({"content": "x"}, finish))
    assert answer.finish_reason == read and "unknown_finish" not in answer.notes


@pytest.mark.parametrize("finish", ["insufficient_system_resource", "CANCELLED", "error", None])
def test_unfinished_answers_are_asked_again(finish: str | None) -> None:
    with pytest.raises(Failure) as raised:
        parse_chat(said({"content": "x"}, finish))
    assert raised.value.kind == "server"


def test_answer_that_was_cut_before_its_first_word_is_empty() -> None:
    for finish in ("length", "MAX_TOKENS", "content_filter"):
        assert parse_chat(said({"role": "assistant"}, finish)).text == ""


@pytest.mark.parametrize(
    ("message", "text", "reasoning"),
    [
        ({"content": [{"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "b"}]}, "ab", ""),
        (
            {"content": [{"type": "thinking", "thinking": "t"}, {"type": "tool_use"}, {"type": "text", "text": "a"}]},
            "a",
            "t",
        ),
        (
            {
                "content": "a",
                "reasoning": None,
                "reasoning_details": [
                    {"type": "reasoning.text", "text": "t"},
                    {"type": "reasoning.encrypted", "data": "?"},
                    {"type": "reasoning.summary", "summary": "u"},
                    7,
                ],
            },
            "a",
            "tu",
        ),
        ({"content": "a", "reasoning_details": "?"}, "a", ""),
    ],
)
def test_parts_of_other_apis_are_text_or_reasoning(message: dict[str, Any], text: str, reasoning: str) -> None:
    answer = parse_chat(said(message))
    assert (answer.text, answer.reasoning) == (text, reasoning)


def test_error_codes_in_answers_may_be_text() -> None:
    with pytest.raises(Failure) as raised:
        parse_chat(b'{"error": {"code": "429", "message": "slow down"}}')
    assert raised.value.kind == "rate_limit"


@pytest.mark.parametrize(
    ("status", "headers", "body", "kind", "pause_s"),
    [
        (429, {"Retry-After-Ms": "1500"}, {}, "rate_limit", 1.5),
        (429, {"Retry-After": "3", "Retry-After-Ms": "1500"}, {}, "rate_limit", 3.0),
        (429, {}, [{"error": {"details": [{"retryDelay": "34.5s"}]}}], "rate_limit", 34.5),
        (429, {}, {"error": {"message": "Rate limit reached. Please try again in 120ms."}}, "rate_limit", 0.12),
        (429, {}, {"error": {"message": "Please try again in 7.66s. Visit"}}, "rate_limit", 7.66),
        (429, {}, {"error": {"code": "insufficient_quota", "message": "You exceeded"}}, "refused", None),
        (402, {}, {"error": {"message": "Insufficient Balance"}}, "refused", None),
        (529, {}, {"error": {"type": "overloaded_error"}}, "rate_limit", None),
        (524, {}, {}, "server", None),
        (400, {}, {"error": {"message": "input length and `max_tokens` exceed context limit"}}, "context", None),
        (400, {}, {"error": "This model's maximum prompt length is 131072 but"}, "context", None),
    ],
)  # fmt: skip
def test_errors_are_classified_with_the_pause_that_is_asked_for(
    status: int, headers: Mapping[str, str], body: object, kind: str, pause_s: float | None
) -> None:
    failure = failure_of(status, headers, json.dumps(body).encode())
    assert (failure.kind, failure.retry_after_s) == (kind, pause_s)


@pytest.mark.parametrize(
    "message",
    [
        "max_tokens is too large: 32768. This model supports at most 16384 completion tokens",
        "max_tokens: 100000 > 8192, which is the maximum allowed number of output tokens for claude",
        "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]",
    ],
)
def test_refusal_of_too_many_new_tokens_names_the_key(message: str) -> None:
    failure = failure_of(400, {}, json.dumps({"error": {"message": message}}).encode())
    assert failure.kind == "refused" and "lower max_tokens in the sampling" in str(failure)


def test_page_of_a_proxy_is_quoted_by_its_title() -> None:
    page = b"<!DOCTYPE html><html><head><style>p {}</style><title>502 Bad\n Gateway</title></head><body>x</body></html>"
    assert error_message(page) == "502 Bad Gateway"
    assert error_message(b'[{"error": {"message": "of Gemini"}}]') == "of Gemini"


class Proxied(ScriptedServer):
    """Server behind a proxy that changes the bodies of answers."""

    encoding = "gzip"

    async def _answer(self, recorded: RecordedRequest, reply: Reply) -> web.Response:
        answer = await super()._answer(recorded, reply)
        assert isinstance(answer.body, bytes)
        pack = {"gzip": gzip.compress, "deflate": zlib.compress, "": lambda body: b"\n \n" * 99 + body}[self.encoding]
        if reply.text == "huge":
            return web.Response(body=pack(b" " * 10_000_000), headers={"Content-Encoding": self.encoding})
        if reply.text == "cut":
            return web.Response(body=pack(answer.body)[:-9], headers={"Content-Encoding": self.encoding})
        headers = {"Content-Encoding": self.encoding} if self.encoding else None
        return web.Response(body=pack(answer.body), content_type="application/json", headers=headers)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", ""])
async def test_packed_answers_and_blank_lines_before_them_are_read(encoding: str) -> None:
    async with Proxied(endless) as server, ModelPool("m", settings(server)) as pool:
        server.encoding = encoding
        assert (await pool.chat([{"role": "user", "content": "q"}], SAMPLING, seed=1, session="", deadline=1e9)).text


@pytest.mark.parametrize("text", ["huge", "cut"])
async def test_packed_answers_that_are_too_large_or_cut_are_malformed(text: str) -> None:
    quick = {"retry_limit": 0, "max_response_bytes": 1_000_000}
    async with Proxied(lambda request: text) as server, ModelPool("m", settings(server, **quick)) as pool:
        with pytest.raises(ModelError, match="larger than 1000000 bytes|body is not gzip"):
            await pool.chat([{"role": "user", "content": "q"}], SAMPLING, seed=1, session="", deadline=1e9)


async def test_service_without_system_messages_gets_their_text_in_the_first_user_message() -> None:
    def gemma(request: RecordedRequest) -> Item:
        refused = any(message["role"] == "system" for message in request.messages or ())
        return Fault.status(400, "System role not supported") if refused else "ok"

    turn = [{"role": "system", "content": "Judge."}, {"role": "user", "content": "q"}]
    async with ScriptedServer(gemma, chat_only=True) as server, ModelPool("m", settings(server, api="chat")) as pool:
        await pool.check()
        before = len(server.requests)
        for _ in range(2):
            assert (await pool.chat(turn, SAMPLING, seed=1, session="", deadline=1e9)).text == "ok"
        assert server.requests[-1].messages == [{"role": "user", "content": "Judge.\n\nq"}]
        assert len(server.requests) - before == 3, "later requests are sent in the right form at once"
