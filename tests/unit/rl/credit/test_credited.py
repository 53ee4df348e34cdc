"""Texts of turns in real trajectories, and what an engine's groups get from a credit rule."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import orjson
import pytest
from support.credit.worked_example import attribution, reply
from support.model_servers.threaded_server import serving
from support.rollouts.dialogues import Guess, Halving, play
from support.servers.scripted_server import RecordedRequest
from support.training.verl_plans import verl_plan

from treadle.agent.contract import Task
from treadle.agent.dialects.base import Segment
from treadle.agent.trajectory import Sample, Trajectory
from treadle.core.chat import ChatTokenizer
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.environments.registry import ENVIRONMENTS
from treadle.rl.credit.credited import turn_texts
from treadle.rl.engine.group_source import ScoredGroup, open_source
from treadle.rl.groups.dump import rollout_row
from treadle.rl.training.figures import step_figures

SETTINGS = ENVIRONMENTS.parse({"type": "support.rollouts.dialogues:Guess", "top": 15, "max_turns": 5})
TASKS = [Task(key, "Guess.", payload={"secret": secret}) for key, secret in {"a": 8, "b": 11}.items()]


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    return ChatTokenizer.load(write_byte_tokenizer(tmp_path_factory.mktemp("bytes")))


class Player:
    """Halving with log-probabilities, as engines generate; every other rollout first says nothing of use."""

    def __init__(self, codec: ChatTokenizer) -> None:
        self._halving, self._codec = Halving(codec, 15), codec

    def __call__(self, many: Sequence[CompletionRequest]) -> list[Completion]:
        return [self._one(request) for request in many]

    def _one(self, request: CompletionRequest) -> Completion:
        assert isinstance(request.prompt, list)
        made = self._halving.answer(request)
        ids = made.token_ids
        if "I say" not in self._codec.decode(request.prompt) and request.seed % 2:
            ids = (*self._codec.encode("Let me think"), self._codec.turn_end_ids[0])
        assert ids is not None
        text = self._codec.decode(list(ids[:-1]))
        return Completion(text, ids, "stop", None, 1, len(ids), "", 0, 0, (-0.5,) * len(ids))


def label_guesses(recorded: RecordedRequest) -> str:
    """Label the steps of a request: those that guess are good."""
    assert recorded.messages is not None
    steps = orjson.loads(recorded.messages[-1]["content"])["steps"]
    return reply("".join("G" if "I say" in step["action"] else "B" for step in steps))


def credited(codec: ChatTokenizer, url: str, step: int = 1) -> list[ScoredGroup]:
    rule = attribution(url, prm_steps=9).model_dump(mode="json")
    keys: dict[str, Any] = {"group_size": 4, "prompts_per_step": 2, "mini_batch_prompts": 2, "credit": rule}
    plan = verl_plan(num_rows=8, environment=SETTINGS, reward="outcome", **keys)
    limits = {"max_model_len": None, "max_batch": None}
    with open_source(plan, {}, {"default": SETTINGS}, Player(codec), codec, **limits) as source:
        return source.credited(source.step(step, TASKS), step)


def test_turns_have_what_the_model_and_the_environment_wrote(codec: ChatTokenizer) -> None:
    made = asyncio.run(play(Guess, Halving(codec, 15), codec, TASKS[1]))
    found = [(turn.action, turn.observation) for turn in turn_texts(made)]
    assert found == [("I say 8", "Higher."), ("I say 12", "Lower."), ("I say 10", "Higher."), ("I say 11", "Right.")]


def test_each_context_of_a_trajectory_has_its_own_turns() -> None:
    segments = [
        Segment("text", "one", 0, 3), Segment("result", "r1", 3, 5), Segment("text", "two", 5, 8),
        Segment("user", "back", 0, 2), Segment("text", "three", 2, 7), Segment("result", "r3", 7, 9),
    ]  # fmt: skip
    samples = [Sample([1], [0] * 8, [1] * 8, [0, 5]), Sample([1], [0] * 9, [1] * 9, [2])]
    made = Trajectory("finished", "", segments, samples, [], 3)
    assert [asdict(turn) for turn in turn_texts(made)] == [
        {"action": "one", "observation": "r1"},
        {"action": "two", "observation": ""},
        {"action": "three", "observation": "r3"},
    ]
    lost = Trajectory("failed", "", [], [], [], 0)
    assert turn_texts(lost) == []


def test_turn_that_wrote_nothing_of_its_own_still_has_a_place() -> None:
    made = Trajectory("finished", "", [Segment("text", "ab", 0, 4)], [Sample([1], [0] * 4, [1] * 4, [0, 2])], [], 2)
    assert [turn.action for turn in turn_texts(made)] == ["ab", ""]


def test_groups_of_an_engine_get_advantages_by_turn_and_parts(codec: ChatTokenizer) -> None:
    with serving(label_guesses) as server:
        groups = credited(codec, server.url)
        paid = len(server.requests)
        again = credited(codec, server.url, step=9)
        assert len(server.requests) == paid, "labels are bought in steps below 9 only"
    for one in groups:
        assert one.advantages is not None
        assert [len(own) for own in one.advantages] == [len(made.turn_starts) for made in one.group.trajectories]
        assert all(reward.parts["labels_read"] == 1.0 for reward in one.rewards)
        row = rollout_row(1, one.group, one.group.trajectories[0], one.rewards[0])
        assert "labels_read" in {part["name"] for part in row["parts"]}
    assert any(len(set(own)) > 1 for one in groups for own in one.advantages or ()), "turns differ"
    figures = step_figures([one.rewards for one in groups])
    assert 0.0 < figures["parts"]["good_in_successes"] <= 1.0 and figures["parts"]["credited_turns"] > 1.0
    for one in again:
        assert all(len(set(own)) == 1 for own in one.advantages or ())
        assert not any("labels_read" in reward.parts for reward in one.rewards)
