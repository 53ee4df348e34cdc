"""Reasoning outside the text: parsed in every form, reported if it is alone, and sent back if that is demanded."""

from __future__ import annotations

import logging
from typing import Any

import orjson
import pytest
from support.model_servers.played_servers import SERVERS, Player
from support.model_servers.server_table import answer_as_agent, play_rollout
from support.servers.scripted_server import RecordedRequest
from support.tables.given_questions import TOKENIZER

from treadle.agent.metering import TokenBudget
from treadle.agent.model_sessions import ModelSessions
from treadle.core.llm.config import ModelSettings
from treadle.core.llm.failures import Failure
from treadle.core.llm.oddities import odd_sentences
from treadle.core.llm.wire import parse_chat


def reply(message: dict[str, Any], usage: dict[str, int] | None = None) -> bytes:
    counts = usage or {"prompt_tokens": 3, "completion_tokens": 4}
    return orjson.dumps({"choices": [{"index": 0, "finish_reason": "length", "message": message}], "usage": counts})


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}])
def test_answer_of_reasoning_alone_is_kept_and_reported_with_what_to_do(key: str, content: dict[str, Any]) -> None:
    answer = parse_chat(reply({**content, key: "Hm."}))
    assert (answer.text, answer.reasoning, answer.notes) == ("", "Hm.", ("only_reasoning",))
    (said,) = odd_sentences({"only_reasoning": 2})
    assert "raise max_tokens" in said and "extra_body" in said
    assert parse_chat(reply({"content": "42", key: "Hm."})).notes == ()


def test_content_in_parts_is_text_and_reasoning() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
    answer = parse_chat(reply({"content": [thinking, {"type": "text", "text": "4"}, {"type": "text", "text": "2"}]}))
    assert (answer.text, answer.reasoning) == ("42", "Hm.")
    with pytest.raises(Failure, match="is no text"):
        parse_chat(reply({"content": [{"type": "image_url"}]}))


def test_counts_by_other_names_are_read() -> None:
    answer = parse_chat(reply({"content": "x"}, {"input_tokens": 5, "output_tokens": 6}))
    assert (answer.prompt_tokens, answer.completion_tokens) == (5, 6)


@pytest.mark.parametrize("name", ["DeepSeek, thinking", "OpenRouter"])
async def test_reasoning_is_sent_back_only_if_demanded(name: str, caplog: pytest.LogCaptureFixture) -> None:
    (played,) = [one for one in SERVERS if one.name == name]
    asked: list[RecordedRequest] = []

    def answer(request: RecordedRequest) -> Any:
        asked.append(request)
        return answer_as_agent(request)

    async with Player(played, answer, TOKENIZER) as server:
        data = {"model": "scripted", "api": "chat", "endpoints": [{"url": server.url}]}
        with caplog.at_level(logging.INFO):
            async with ModelSessions(TokenBudget(None, None)) as sessions:
                model = await sessions.model("m", ModelSettings.model_validate(data), calls_tools=True)
                trajectory = await play_rollout(model, "functions")
    turns = [message for message in asked[-1].body["messages"] if message["role"] == "assistant"]
    assert [turn.get("reasoning_content") for turn in turns] == (
        ["Let me think."] if played.needs_reasoning else [None]
    )
    assert [segment.kind for segment in trajectory.segments].count("reasoning") == 2
    lines = [record.getMessage() for record in caplog.records if "returns reasoning apart" in record.getMessage()]
    assert len(lines) == 1 and lines[0].startswith("models.m returns reasoning apart")
