"""Rows of the table `rollouts`: what they keep of a trajectory, and what is read back from them."""

from __future__ import annotations

import dataclasses

import orjson
import pytest
from support.rollouts.rollout_bench import ANSWER, SEARCH, ScriptedModel, load, play

from treadle.agent.contract import Outcome
from treadle.agent.tools.schema import ToolSchema
from treadle.agent.trajectory import Sample, Trajectory
from treadle.core.chat import ChatTokenizer
from treadle.environments.rollouts.rows import (
    calls_of,
    failed_row,
    first_tools,
    head_of_row,
    plain_schemas,
    row_of,
    trajectory_of,
)
from treadle.environments.rollouts.tables import ROLLOUTS

QUESTION = {"question_key": "k", "dataset": "d", "domain": "qa", "question": "Who?", "choices": []}
SCHEMA_KEYS = {"name", "description", "parameters"}
HEAD = head_of_row(QUESTION, "base", 0, 1)


@pytest.fixture(params=["qwen", "smollm2"])
def tokenizer(request: pytest.FixtureRequest) -> ChatTokenizer:
    return load(request.param)


async def test_stored_row_restores_the_trajectory(tokenizer: ChatTokenizer) -> None:
    trajectory = await play(ScriptedModel([SEARCH, ANSWER], tokenizer, "\n"), tokenizer)
    row = row_of(HEAD, trajectory, "e", tokenizer.digest)
    again = trajectory_of(row)
    assert (again.status, again.text, again.segments, again.samples) == (
        *(trajectory.status, trajectory.text, trajectory.segments, trajectory.samples),
    )
    assert [(call.tool, call.argument, call.status, call.turn) for call in calls_of(row)] == [("search", "q", "ok", 0)]
    assert (row["calls_requested"], row["num_turns"]) == (1, 2)
    assert row["tools"] == [{"tool": "search", "requested": 1, "executed": 1, "failed": 0}]
    assert set(row) == set(ROLLOUTS.schema.names) - {"job"}


async def test_notes_of_calls_are_read_back_for_scorers(tokenizer: ChatTokenizer) -> None:
    trajectory = await play(ScriptedModel([SEARCH, ANSWER], tokenizer, "\n"), tokenizer)
    noted = [dataclasses.replace(call, note=f"picture {number}") for number, call in enumerate(trajectory.calls)]
    row = row_of(HEAD, dataclasses.replace(trajectory, calls=noted), "e", tokenizer.digest)
    assert [call.note for call in calls_of(row)] == ["picture 0"]


async def test_spans_say_who_wrote_each_id_of_a_sample(tokenizer: ChatTokenizer) -> None:
    replies = [SEARCH, "<think>found</think> nothing"]
    trajectory = await play(ScriptedModel(replies, tokenizer), tokenizer)
    (sample,) = row_of(HEAD, trajectory, "e", tokenizer.digest)["samples"]
    texts = [tokenizer.decode(sample["ids"][span["start"] : span["end"]]) for span in sample["spans"]]
    roles = [span["role"] for span in sample["spans"]]
    assert roles == ["assistant", "result", "assistant", "frame"]
    assert texts[:3] == [replies[0], "<result>found: q</result>", replies[1]]
    assert [sample["ids"][start - 1] for start in sample["turn_starts"][1:]] == [
        *(sample["ids"][span["end"] - 1] for span in sample["spans"] if span["role"] == "result"),
    ]


def test_rewards_and_outcome_of_the_environment_survive_a_row() -> None:
    samples = [Sample([1], [2], [1], [0]), Sample([1, 3], [2], [1], [0], training_prompt_ids=[1])]
    outcome = Outcome(0.5, True, {"speed": 0.25})
    made = Trajectory("finished", "t", [], samples, [], 2, turn_rewards=[None, 1.0], outcome=outcome, truncated=True)
    schemas = (ToolSchema("a", "A."), ToolSchema("b", "B.", {"type": "object", "properties": {"x": {}}}))
    first = ({"role": "user", "content": "Who?"},)
    made = dataclasses.replace(made, first_messages=first, tools=schemas, num_added_tools=1)
    row = row_of(HEAD, made, "e", "t")
    assert (row["reward"], row["truncated"], orjson.loads(row["outcome"])["success"]) == (0.5, True, True)
    assert trajectory_of(row) == made
    assert first_tools(row["tool_schemas"]) == [schemas[0]]
    assert [set(one) for one in orjson.loads(plain_schemas(row["tool_schemas"]))] == [SCHEMA_KEYS] * 2
    assert [sample.hinted for sample in trajectory_of(row).samples] == [False, True]
    summed = dataclasses.replace(made, outcome=None, turn_rewards=[0.5, None, 1.0])
    unknown = dataclasses.replace(made, outcome=Outcome(success=False), turn_rewards=[None])
    assert [row_of(HEAD, each, "e", "t")["reward"] for each in (summed, unknown)] == [1.5, None]


def test_failed_row_has_no_sample_and_no_reward() -> None:
    row = failed_row(HEAD, "down", "e", "t")
    assert (row["status"], row["error"], row["samples"], row["reward"]) == ("failed", "down", [], None)
