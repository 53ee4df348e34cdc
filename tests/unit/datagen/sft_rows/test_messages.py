"""Messages of fine-tuning rows with native calls: one structure for every route, read from segments."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from support.rollouts.native_rollouts import ROUTES, Spoken, play_native
from support.rollouts.rollout_bench import ANSWER, SEARCH, ScriptedModel, load, play

from treadle.agent.contract import Task
from treadle.agent.dialects.base import Segment
from treadle.agent.dialects.forms.hermes import response_text
from treadle.agent.dialects.functions import FunctionsDialect
from treadle.agent.dialects.tags import TOOL_DIALECT
from treadle.agent.trajectory import Trajectory
from treadle.datagen.sft_rows.messages import messages_of

TASK = Task("q1", "What is it?")
SCRIPT = [
    Spoken("Let me look.", [("search", {"query": 'the "thing" <b> é'}), ("python", {"code": "1 < 2\n"})], "Is it 3?"),
    Spoken("", [("python", {"code": "2"})]),
    Spoken("It is \\boxed{7}.", (), "Surely."),
]


def messages_in(trajectory: Trajectory) -> list[dict[str, Any]]:
    (sample,) = trajectory.samples
    return messages_of(trajectory.segments, bytes(sample.origins), FunctionsDialect())


def made_of(*parts: tuple[str, str]) -> list[dict[str, Any]]:
    return messages_of([Segment(kind, text, 0, 0) for kind, text in parts], b"", FunctionsDialect())


def call(number: int, name: str, arguments: dict[str, object]) -> dict[str, Any]:
    written = json.dumps(arguments, separators=(",", ":"), ensure_ascii=False)
    return {"id": f"call0000{number}", "name": name, "arguments": written}


def result(number: int, text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": f"call0000{number}"}


@pytest.mark.parametrize("route", ROUTES)
async def test_every_route_gives_the_same_calls_and_results(route: str) -> None:
    # Turns of the Llama form are nothing but calls.
    said = "" if route == "llama" else "Let me look."
    script = [Spoken(one.text, one.calls) for one in SCRIPT] if route == "llama" else SCRIPT
    thoughts: Sequence[dict[str, str]] = [{}, {}] if route == "llama" else [
        {"reasoning": "Is it 3?"}, {"reasoning": "Surely."},
    ]  # fmt: skip
    assert messages_in(await play_native(route, script, TASK)) == [
        {
            "role": "assistant",
            "content": said,
            **thoughts[0],
            "tool_calls": [
                call(1, "search", {"query": 'the "thing" <b> é'}),
                call(2, "python", {"code": "1 < 2\n"}),
            ],
        },
        result(1, 'found: the "thing" <b> é'),
        result(2, "1 < 2" if route == "llama" else "1 < 2\n"),  # whose template strips contents
        {"role": "assistant", "content": "", "tool_calls": [call(3, "python", {"code": "2"})]},
        result(3, "2"),
        {"role": "assistant", "content": "It is \\boxed{7}.", **thoughts[1]},
    ]


def test_malformed_call_stays_text_and_its_result_answers_no_call() -> None:
    good = '<tool_call>\n{"name": "search", "arguments": {"query": "x"}}\n</tool_call>'
    bad = "<tool_call>{nonsense</tool_call>"
    first, error, found, last = made_of(
        ("text", "Look. "), ("tool_call", bad), ("tool_call", good), ("tool", "Error: not JSON."), ("tool", "found"),
        ("answer", "It is x."),
    )  # fmt: skip
    assert first["content"] == f"Look.\n{bad}"
    assert [one["name"] for one in first["tool_calls"]] == ["search"]
    assert error == {"role": "tool", "content": "Error: not JSON."}
    assert found == result(1, "found") and last == {"role": "assistant", "content": "It is x."}
    (alone,) = made_of(("tool_call", bad))
    assert alone == {"role": "assistant", "content": bad}


def test_calls_of_a_list_are_calls_of_their_own() -> None:
    listed = '[{"name": "a", "parameters": {"x": 1}}, {"name": "b", "parameters": {}}]'
    (turn,) = made_of(("text", "<|python_tag|>"), ("tool_call", listed), ("text", " ;\n"))
    assert turn == {"role": "assistant", "content": "", "tool_calls": [call(1, "a", {"x": 1}), call(2, "b", {})]}


def test_empty_result_is_an_empty_message() -> None:
    written = '<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>'
    found = made_of(("tool_call", written), ("tool_call", written), ("tool", "1"), ("user", "Go on."), ("answer", "x"))
    assert found[1:4] == [result(1, "1"), result(2, ""), {"role": "user", "content": "Go on."}]


def test_only_a_message_with_all_results_is_taken_apart() -> None:
    written = '<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>'
    two = f"{response_text('1')}\n{response_text('2')}"
    apart = made_of(("tool_call", written), ("tool_call", written), ("user", two), ("answer", "x"))
    assert apart[1:3] == [result(1, "1"), result(2, "2")]
    other = made_of(("tool_call", written), ("user", two), ("answer", "x"))
    assert other[1:3] == [result(1, ""), {"role": "user", "content": two}]
    no_call = made_of(("text", "Hm."), ("user", two), ("answer", "x"))
    assert no_call[1] == {"role": "user", "content": two}


async def test_turn_with_tags_is_one_text_that_says_where_its_results_are() -> None:
    tokenizer = load("qwen")
    trajectory = await play(ScriptedModel([SEARCH, ANSWER], tokenizer, "\n"), tokenizer)
    (sample,) = trajectory.samples
    (turn,) = messages_of(trajectory.segments, bytes(sample.origins), TOOL_DIALECT)
    ((start, end),) = turn["results"]
    assert turn["content"] == f"{SEARCH}<result>found: q</result>{ANSWER}"
    assert turn["content"][start:end] == "<result>found: q</result>"
