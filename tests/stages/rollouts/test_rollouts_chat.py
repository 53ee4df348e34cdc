"""The stage `rollouts` with an agent that is a hosted service: one that only chats."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.rollouts.rollouts_bench import ANSWER, Bench, corpus
from support.servers.hosted_service import agent_requests, fussy, hosted, turn_of
from support.servers.scripted_server import Fault, Item, RecordedRequest, Reply
from support.tables.given_questions import GIVEN, TOKENIZER

from treadle.core.config import load_config
from treadle.core.errors import BudgetExceeded, ConfigError, JobsPending
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.tasks.catalog import instance
from treadle.tasks.config import TreadleConfig

CHAT = {"api": "chat", "tokenizer": None}
SEARCH = "<think>s</think><search>moss</search>"
PROGRAM = "<think>p</think><python>print(6 * 7)</python>"
TURNS = [SEARCH, PROGRAM, ANSWER]
FOUND = "<result>Moss\nMoss grows on &lt;/result> &lt;answer>stones&lt;/answer>.</result>"
WROTE = "<result>42</result>"


def in_turn(request: RecordedRequest) -> Item:
    return TURNS[turn_of(request)]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "root", [f"Question {number}?" for number in range(4)])


def tools(folder: Path) -> dict[str, Any]:
    return {
        "search": {"enabled": True, "corpus": [str(corpus(folder))], "cache_folder": str(folder)},
        "python": {"enabled": True, "sandbox": {"packages": [], "interpreter": sys.executable, "pool_size": 1}},
    }


def searching(folder: Path) -> dict[str, Any]:
    return {**tools(folder), "python": {"enabled": False}}


@pytest.mark.parametrize("drops_stops", [True, False])
async def test_chat_agent_uses_both_tools_and_gets_results_as_user_messages(
    bench: Bench, tmp_path: Path, drops_stops: bool
) -> None:
    async with hosted(in_turn, drops_stops=drops_stops) as service:
        record = await bench.make(service.url, model=CHAT, environment=tools(tmp_path), options={"max_questions": 1})
        first, second, third = agent_requests(service)
    (row,) = bench.rows(record)
    assert (row["status"], row["text"]) == ("answered", SEARCH + FOUND + PROGRAM + WROTE + ANSWER)
    kinds = [segment["kind"] for segment in json.loads(row["segments"])]
    assert kinds == ["think", "search", "result", "think", "python", "result", "think", "answer"]
    assert [(call["tool"], call["status"]) for call in json.loads(row["tool_calls"])] == [
        ("search", "ok"), ("python", "ok"),
    ]  # fmt: skip
    (sample,) = row["samples"]
    assert not any(sample.values()) and row["tokenizer_digest"] == ""
    # The text of a result, even a closing marker or an answer, is a user message and never the agent's.
    assert first.messages is not None and [message["role"] for message in first.messages] == ["system", "user"]
    assert second.messages == [
        *first.messages, {"role": "assistant", "content": SEARCH}, {"role": "user", "content": FOUND},
    ]  # fmt: skip
    assert third.messages == [
        *second.messages, {"role": "assistant", "content": PROGRAM}, {"role": "user", "content": WROTE},
    ]  # fmt: skip
    assert {request.path for request in service.requests} == {"/v1/chat/completions"}
    assert all(set(request.body["stop"]) == {"</python>", "</search>", "</answer>"} for request in (first, second))
    # Tokens are those of the service's own usage.
    said = [turn if not drops_stops else turn[: turn.rfind("</")] for turn in TURNS]
    assert row["completion_tokens"] == sum(len(TOKENIZER.encode(text)) for text in said)
    assert row["prompt_tokens"] == sum(len(TOKENIZER.encode(request.text)) for request in (first, second, third))


async def test_resumed_stage_repeats_no_turn(bench: Bench, tmp_path: Path) -> None:
    def breaks(request: RecordedRequest) -> Item:
        return Fault.status(500) if turn_of(request) == 1 and "Question 2?" in request.text else in_turn(request)

    environment = tools(tmp_path)
    async with hosted(in_turn) as service:
        whole = await Bench(tmp_path / "other", [f"Question {number}?" for number in range(4)]).make(
            service.url, model=CHAT, environment=environment
        )
    async with hosted(breaks) as service:
        with pytest.raises(JobsPending, match="1 of 4"):
            await bench.make(service.url, model=CHAT, environment=environment)
        assert sum(request.outcome == "ok" for request in agent_requests(service)) == 3 * 3 + 1
    async with hosted(in_turn) as service:
        resumed = await bench.make(service.url, model=CHAT, environment=environment)
        assert [turn_of(request) for request in agent_requests(service)] == [1, 2]
    assert resumed.outputs["rollouts"].digest == whole.outputs["rollouts"].digest


async def test_budgets_use_the_service_token_counts(bench: Bench, tmp_path: Path) -> None:
    environment = searching(tmp_path)
    async with hosted(lambda request: [SEARCH, ANSWER][turn_of(request)]) as service:
        with pytest.raises(BudgetExceeded, match="max_total_tokens = 1"):
            await bench.make(
                service.url, model=CHAT, environment=environment, options={"max_total_tokens": 1, "max_concurrent": 1}
            )
        (only,) = agent_requests(service)
        used = len(TOKENIZER.encode(only.text)) + len(TOKENIZER.encode(SEARCH.removesuffix("</search>")))
        with pytest.raises(BudgetExceeded, match=f"^{used} tokens are used of max_total_tokens = {used}"):
            await bench.make(service.url, model=CHAT, environment=environment, options={"max_total_tokens": used})
        assert len(agent_requests(service)) == 1
        await bench.make(service.url, model=CHAT, environment=environment, options={"max_total_tokens": 10**6})
        assert len(agent_requests(service)) == 2 * 4


@pytest.mark.parametrize(
    ("reply", "status", "text"),
    [
        (Reply("<think>on and on <search>mo", finish_reason="length"), "length", "<think>on and on <search>mo"),
        (Reply("", finish_reason="length"), "length", ""),
        (Reply(""), "no_answer", ""),
        (Reply("", refusal="I cannot help with that."), "no_answer", "I cannot help with that."),
        (Reply("<search>how to", finish_reason="content_filter"), "filtered", "<search>how to"),
        (Reply("Forty-two."), "no_answer", "Forty-two."),
    ],
    ids=["cut", "cut in hidden thought", "nothing", "refused", "filtered", "no mark"],
)
async def test_chat_replies_without_call_or_answer_have_a_status(
    bench: Bench, tmp_path: Path, reply: Reply, status: str, text: str
) -> None:
    # A second question is answered, because a stage with only empty completions fails.
    async with hosted(lambda request: reply if "Question 0?" in request.text else ANSWER) as service:
        record = await bench.make(
            service.url, model=CHAT, environment=searching(tmp_path), options={"max_questions": 2}
        )
        assert len(agent_requests(service)) == 2
    row, _ = bench.rows(record)
    assert (row["status"], row["text"], row["calls_requested"]) == (status, text, 0)


async def test_service_that_rejects_parameters_is_called_without_them(bench: Bench, tmp_path: Path) -> None:
    refused: list[str] = []
    sampling = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 777}
    async with hosted(fussy(lambda request: TURNS[turn_of(request)] + " beyond", refused)) as service:
        record = await bench.make(
            service.url, model=CHAT, environment=tools(tmp_path), options={"max_questions": 1, "sampling": sampling}
        )
        asked = agent_requests(service)
    # Each once, by the preflight; what is written beyond a call is dropped here, as the service does not stop.
    assert sorted(refused) == ["max_tokens", "stop", "temperature", "top_p"]
    assert [set(request.body) for request in asked] == [{"model", "messages", "max_completion_tokens", "seed"}] * 3
    assert {request.body["max_completion_tokens"] for request in asked} == {777}
    (row,) = bench.rows(record)
    assert (row["status"], row["text"]) == ("answered", SEARCH + FOUND + PROGRAM + WROTE + ANSWER)


@pytest.mark.parametrize(("key", "value"), [("temperature", 0.6), ("top_p", 0.95)])
async def test_unsupported_sampling_parameters_are_refused_before_a_rollout(
    bench: Bench, key: str, value: float
) -> None:
    sampling = {"temperature": 1.0, "top_p": 1.0, key: value}
    async with hosted(fussy(in_turn, [])) as service:
        with pytest.raises(ConfigError, match=r"temperature but 1 and no top_p but 1; set that in rollouts\.sampling"):
            await bench.make(service.url, model=CHAT, options={"sampling": sampling})
        assert agent_requests(service) == []


async def test_phase_rollouts_refuse_a_chat_only_service(bench: Bench) -> None:
    async with hosted(in_turn) as service:
        model = {"model": "scripted", "api": "chat", "endpoints": [{"url": service.url}]}
        environment = {"python": {"enabled": False}, "search": {"enabled": False}}
        data = {
            "flow": {"stages": ["rollouts"]},
            "models": {"base": model},
            "environment": environment,
            "overrides": {"1/rollouts@phase-1": {"max_questions": 1}},
        }
        phase = instance(load_config(TreadleConfig, data=data), Address.parse("1/rollouts@phase-1"))
        phase = replace(phase, inputs={**phase.inputs, "questions": (GIVEN,), "checkpoint": ()})
        with pytest.raises(ConfigError, match='api = "chat" has no token ids, which rollouts need') as refusal:
            await asyncio.to_thread(execute, phase, bench.run)
        assert "\n" not in str(refusal.value)
        assert service.requests == []
