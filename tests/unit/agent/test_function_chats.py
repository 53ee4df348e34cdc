"""Conversations with native calls over the chat route: services get back what they accept, and each call an answer."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import pytest
from support.rollouts.rollout_bench import FixedTool

from treadle.agent.call_cache import NullCache
from treadle.agent.contract import Message, ModelTurn, Task
from treadle.agent.dialects.functions import FunctionsDialect
from treadle.agent.model_types import RolloutLimits
from treadle.agent.rollout import RolloutEngine
from treadle.agent.trajectory import Trajectory
from treadle.core.answers.extraction import extract_prediction
from treadle.core.llm.config import Sampling
from treadle.core.llm.types import Completion, ToolCall
from treadle.environments.custom.base import Done, Environment, Reaction
from treadle.environments.custom.kind import CustomRuntime, CustomType
from treadle.environments.opening import limits_of
from treadle.environments.question.episode import QuestionEpisode
from treadle.environments.question.settings import QuestionSettings

TASK = Task("q1", "What is it?")
SETTINGS = QuestionSettings(dialect="functions")
SEARCH = '{"query": "x"}'


def answer(text: str = "", *calls: ToolCall, reasoning: str = "", finish: str = "stop") -> Completion:
    return Completion(text, None, finish, None, 20, 9, "x", 0, 0, tool_calls=calls, reasoning=reasoning)


class Service:
    """Chat service that gives scripted answers."""

    def __init__(self, *answers: Completion) -> None:
        self._answers = answers
        self.requests: list[list[dict[str, Any]]] = []
        self.max_tokens: list[int] = []

    async def complete(self, *args: Any, **keys: Any) -> Completion:
        raise NotImplementedError

    async def chat(self, messages: Sequence[Mapping[str, Any]], sampling: Sampling, **keys: Any) -> Completion:
        self.requests.append([dict(message) for message in messages])
        self.max_tokens.append(sampling.max_tokens)
        return self._answers[len(self.requests) - 1]


async def play(
    *answers: Completion,
    settings: QuestionSettings = SETTINGS,
    episode: Any = None,
    limits: RolloutLimits | None = None,
) -> tuple[Trajectory, Service]:
    service = Service(*answers)
    dialect = SETTINGS.turn_dialect.bound(None, is_chat=True)
    engine = RolloutEngine(service, None, Sampling(), limits or limits_of(settings), dialect, chat=service)
    episode = episode or QuestionEpisode(settings, {"search": FixedTool("search"), "python": FixedTool("python")})
    return await engine.roll_out(episode, TASK, seed=7, deadline=math.inf, cache=NullCache()), service


@pytest.mark.parametrize("given", [("", ""), ("c", "c"), ("c", "")])
async def test_missing_or_equal_ids_are_replaced(given: tuple[str, str]) -> None:
    calls = [
        ToolCall(identity, "search", f'{{"query": "{query}"}}') for identity, query in zip(given, "ab", strict=True)
    ]
    _, service = await play(answer("", *calls), answer("done"))
    assistant, first, second = service.requests[1][-3:]
    ids = [call["id"] for call in assistant["tool_calls"]]
    assert len(set(ids)) == 2 and all(len(one) == 9 and one.isalnum() for one in ids)
    assert [(m["tool_call_id"], m["content"]) for m in (first, second)] == [(ids[0], "found: a"), (ids[1], "found: b")]


async def test_id_of_an_earlier_turn_is_not_sent_again() -> None:
    call = ToolCall("call_0", "search", SEARCH)
    _, service = await play(answer("", call), answer("", call), answer("done"))
    turns = [message for message in service.requests[2] if "tool_calls" in message]
    ids = [turn["tool_calls"][0]["id"] for turn in turns]
    results = [message["tool_call_id"] for message in service.requests[2] if message["role"] == "tool"]
    assert ids[0] == "call_0" and len(set(ids)) == 2 and results == ids


@pytest.mark.parametrize("name", ["", "a b\x1b[31m\n", "<tool_call>", "é" * 3, "x" * 100, "functions.search"])
async def test_name_that_services_refuse_is_not_sent_back(name: str) -> None:
    trajectory, service = await play(answer("", ToolCall("c1", name, SEARCH)), answer("done"))
    assert [call.status for call in trajectory.calls] == ["invalid"]
    assistant, result = service.requests[1][-2:]
    (call,) = assistant["tool_calls"]
    assert re.fullmatch("[A-Za-z0-9_-]{1,64}", call["function"]["name"])
    assert result["tool_call_id"] == "c1" and result["content"].startswith("Error")


async def test_call_next_to_open_reasoning_in_the_text_is_made() -> None:
    trajectory, service = await play(answer("<think>Let me see", ToolCall("c1", "search", SEARCH)), answer("done"))
    assert [call.text for call in trajectory.calls] == ["found: x"]
    assert service.requests[1][-1] == {"role": "tool", "content": "found: x", "tool_call_id": "c1"}
    assert [segment.kind for segment in trajectory.segments][:2] == ["reasoning", "tool_call"]


async def test_call_in_the_reasoning_of_a_text_is_not_sent_back_as_one() -> None:
    block = '<tool_call>{"name": "search", "arguments": {"query": "%s"}}</tool_call>'
    text = f"<think>Maybe {block % 'no'}?</think>\n{block % 'yes'}"
    trajectory, service = await play(answer(text), answer("done"))
    assert [call.argument for call in trajectory.calls] == ["yes"]
    assistant, result = service.requests[1][-2:]
    assert [json.loads(call["function"]["arguments"]) for call in assistant["tool_calls"]] == [{"query": "yes"}]
    assert result["content"] == "found: yes"


@pytest.mark.parametrize("on_limit", ["notice", "silent", "stop"])
async def test_every_call_gets_an_answer_at_a_limit(on_limit: str) -> None:
    settings = QuestionSettings.model_validate(
        {"dialect": "functions", "on_limit": on_limit, "search": {"max_calls": 1}, "max_total_calls": 2}
    )
    calls = [ToolCall(f"c{n}", "search", f'{{"query": "{n}"}}') for n in range(2)]
    calls += [ToolCall(f"p{n}", "python", '{"code": "1"}') for n in range(2)]
    trajectory, service = await play(answer("", *calls), answer("done"), settings=settings)
    assert [call.status for call in trajectory.calls] == ["ok", "refused", "ok", "refused"]
    if on_limit == "stop":
        assert trajectory.status == "limit"
        return
    answers = service.requests[1][-4:]
    assert [m["tool_call_id"] for m in answers] == ["c0", "c1", "p0", "p1"]
    assert all(m["content"] for m in answers)


async def test_turns_that_continue_are_sent_as_they_were_asked() -> None:
    settings = QuestionSettings(dialect="functions", on_unmarked="continue")
    cut = answer("First, ", finish="length")
    _, service = await play(cut, cut, answer("done"), settings=settings)
    assert [message["role"] for message in service.requests[2]][-5:] == [
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
    ]
    assert service.requests[2][: len(service.requests[1])] == service.requests[1]


async def test_tools_count_towards_the_first_request() -> None:
    _, service = await play(answer("done"), limits=RolloutLimits(4, max_model_len=2_000))
    _, without = await play(
        answer("done"),
        limits=RolloutLimits(4, max_model_len=2_000),
        settings=SETTINGS,
        episode=QuestionEpisode(QuestionSettings(dialect="functions"), {}),
    )
    assert service.max_tokens[0] < without.max_tokens[0] - 300


async def test_reasoning_alone_is_no_answer_and_no_message() -> None:
    trajectory, _ = await play(answer("", reasoning="Hm \\boxed{3}"))
    assert trajectory.status == "no_answer"
    assert extract_prediction(orjson.loads(orjson.dumps(trajectory.segments))) == ""


class Desk(Environment):
    """Environment that answers calls itself."""

    dialect = FunctionsDialect()
    resume = "replay"

    async def step(self, turn: ModelTurn) -> Reaction:
        if not turn.calls:
            return Done()
        first, second, third = turn.calls
        return [
            Message("Hurry up."),
            Message("second", "tool", second.id),
            Message("first", "tool", first.id),
        ]


async def test_results_are_sent_before_other_messages_and_to_their_calls() -> None:
    settings = CustomType(Desk).settings.model_validate({"type": "x"})
    episode = CustomRuntime(Desk, settings, None, {}).episode()
    calls = [ToolCall("a", "look", "{}"), ToolCall("b", "look", "{}"), ToolCall("c", "go", "{}")]
    _, service = await play(answer("", *calls), answer("done"), episode=episode)
    assert [(m["role"], m.get("tool_call_id"), m["content"]) for m in service.requests[1][-4:]] == [
        ("tool", "a", "first"),
        ("tool", "b", "second"),
        ("tool", "c", "(no output)"),
        ("user", None, "Hurry up."),
    ]


async def test_box_in_an_argument_is_no_answer() -> None:
    call = ToolCall("c1", "python", '{"code": "print(\\"\\\\\\\\boxed{9}\\")"}')
    trajectory, _ = await play(answer("", call), answer("It is 4."))
    assert "boxed{9}" in trajectory.calls[0].argument
    assert extract_prediction(orjson.loads(orjson.dumps(trajectory.segments))) == "It is 4."
