"""Groups of rollouts among the sessions of one worker of verl, with a stub of verl's client; verl is not imported."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.training.rewards import group_rewards
from support.training.scripted_groups import ANSWER, SEARCH, StubTool
from support.training.stub_verl import Script, StubClient, StubOutput, caller
from support.training.verl_plans import loop_fields, verl_plan

from treadle.agent.dialects.tags import TOOL_DIALECT
from treadle.core.chat import ChatTokenizer
from treadle.core.errors import DataError
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.core.seeds import derive_seed
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.environments.question.runtime import QuestionRuntime
from treadle.environments.question.settings import QuestionSettings
from treadle.environments.scorers.scoring import OpenScorers
from treadle.rl.engine.rows import Payloads
from treadle.rl.engine.scorer import GroupScorer
from treadle.rl.engine.verl.barrier import GroupFailed
from treadle.rl.engine.verl.folder import VerlFolder
from treadle.rl.engine.verl.host import LoopHost, RewardedTrajectory, host_of
from treadle.rl.engine.verl.sample import Sample
from treadle.rl.environment import OpenEnvironment
from treadle.rl.groups.group import Group
from treadle.rl.rewards.rewarded import RewardedItem
from treadle.rl.training.plan import RlPlan
from treadle.rl.training.tables import RL_ROLLOUTS
from treadle.rl.verl.data import ENGINE_SCHEMA, write_verl_rows
from treadle.rl.verl.rows import TRAINING_SCHEMA, VERL_SCHEMA

SETTINGS = QuestionSettings(system_prompt="Use tools.")
NO_TOOLS = {"python": {"enabled": False}, "search": {"enabled": False}}
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    return ChatTokenizer.load(write_byte_tokenizer(tmp_path_factory.mktemp("bytes")))


class CallsHost(LoopHost):
    """Rewards the mean of calls minus own calls."""

    def _rewards(self, sample: Sample, group: Group) -> list[RewardedItem]:
        rewards = group_rewards(group.items, sample.question.answers, "math", 0.0, 0.0, dialect=TOOL_DIALECT)
        mean = sum(reward.tool_calls for reward in rewards) / len(rewards)
        return [replace(reward, reward=mean - reward.tool_calls) for reward in rewards]


def host_of_plan(plan: RlPlan, codec: ChatTokenizer, folder: Path, kind: type[LoopHost] = LoopHost) -> LoopHost:
    tools = {"search": StubTool("search"), "python": StubTool("python")}
    opened = {"default": OpenEnvironment(SETTINGS, QuestionRuntime(SETTINGS, tools))}
    scorer = GroupScorer(plan, OpenScorers({}), {"default": SETTINGS})
    return kind(plan, opened, codec, codec.vocab_size, VerlFolder(folder), scorer, Payloads(None))


def seeds(plan: RlPlan, sample: Sample, size: int) -> list[int]:
    group = derive_seed(plan.seed, sample.split, sample.step, sample.index)
    return [derive_seed(group, session) for session in range(size)]


async def gather(host: LoopHost, sample: Sample, client: StubClient, size: int) -> list[Any]:
    """Return the results of all sessions of a group, errors included."""
    sessions = [host.join(sample, session, size, client, SAMPLING) for session in range(size)]
    return await asyncio.gather(*sessions, return_exceptions=True)


@pytest.mark.covers("pareto-31")
async def test_sessions_are_rewarded_relative_to_their_siblings(codec: ChatTokenizer, tmp_path: Path) -> None:
    plan = verl_plan()
    sample = Sample.from_fields(loop_fields())
    calls = dict(zip(seeds(plan, sample, 4), (1, 2, 3, 6), strict=True))
    client = StubClient(caller(codec, calls, SEARCH, ANSWER))
    host = host_of_plan(plan, codec, tmp_path, CallsHost)
    made: list[RewardedTrajectory] = await gather(host, sample, client, 4)
    assert [item.reward.tool_calls for item in made] == [1, 2, 3, 6]
    assert [item.reward.reward for item in made] == [2, 1, 0, -3]


@pytest.mark.covers("pareto-31")
async def test_crashing_sibling_fails_the_group_for_all(codec: ChatTokenizer, tmp_path: Path) -> None:
    plan = verl_plan()
    sample = Sample.from_fields(loop_fields())
    numbers = seeds(plan, sample, 4)
    answers = caller(codec, dict.fromkeys(numbers, 1), SEARCH, ANSWER)
    broken = derive_seed(numbers[2], 1)

    def script(request: CompletionRequest) -> Completion:
        if request.seed == broken:
            raise RuntimeError("the actor died")
        return answers(request)

    ends = await gather(host_of_plan(plan, codec, tmp_path), sample, StubClient(script), 4)
    assert [type(end) for end in ends] == [GroupFailed] * 4
    assert "RuntimeError: the actor died" in str(ends[0])
    (noted,) = VerlFolder(tmp_path).failures(1, validation=False)
    assert "the actor died" in noted
    assert not VerlFolder(tmp_path).read_groups(1, validation=False)


async def test_group_that_fails_after_completion_is_not_counted(codec: ChatTokenizer, tmp_path: Path) -> None:
    plan = verl_plan()
    sample = Sample.from_fields(loop_fields())
    client = StubClient(caller(codec, dict.fromkeys(seeds(plan, sample, 2), 0), SEARCH, ANSWER))
    host, folder = host_of_plan(plan, codec, tmp_path), VerlFolder(tmp_path)
    first = asyncio.create_task(host.join(sample, 0, 2, client, SAMPLING))
    while not folder.read_groups(1, validation=False):
        await asyncio.sleep(0)
    first.cancel()
    late = await asyncio.gather(first, host.join(sample, 1, 2, client, SAMPLING), return_exceptions=True)
    assert [type(end) for end in late] == [asyncio.CancelledError, GroupFailed]
    assert folder.read_groups(1, validation=False) == []
    assert len(folder.failures(1, validation=False)) == 1


async def test_plan_rewards_and_rows_are_written(codec: ChatTokenizer, tmp_path: Path) -> None:
    plan = verl_plan(group_size=4)
    sample = Sample.from_fields(loop_fields("key-1", step=3))
    answer = ANSWER.replace("1}", "12}")
    calls = dict(zip(seeds(plan, sample, 4), (0, 1, 1, 2), strict=True))
    client = StubClient(caller(codec, calls, SEARCH, answer), version=2)
    made: list[RewardedTrajectory] = await gather(host_of_plan(plan, codec, tmp_path), sample, client, 4)
    assert [item.reward.score for item in made] == [1.0] * 4
    assert made[0].reward.reward > made[1].reward.reward > made[3].reward.reward
    assert {(item.min_version, item.max_version) for item in made} == {(2, 2)}
    (group,) = VerlFolder(tmp_path).read_groups(3, validation=False)
    rows = [line["row"] for line in group]
    assert [row["session"] for row in rows] == [0, 1, 2, 3] and set(rows[0]) == set(RL_ROLLOUTS.schema.names)
    assert [row["reward"] for row in rows] == [item.reward.reward for item in made]
    for item in made:
        assert len(item.made.completion_ids) == len(item.made.env_mask) == len(item.made.logprobs)
        assert all(
            (logprob == -0.5) == bool(mask)
            for logprob, mask in zip(item.made.logprobs, item.made.env_mask, strict=True)
        )


async def test_requests_contain_the_rollout_stops_seeds_and_budget(codec: ChatTokenizer, tmp_path: Path) -> None:
    plan = verl_plan(max_new_tokens=200)
    sample = Sample.from_fields(loop_fields(uid="abc"))
    calls = dict.fromkeys(seeds(plan, sample, 2), 1)
    client = StubClient(caller(codec, calls, SEARCH, ANSWER))
    await gather(host_of_plan(plan, codec, tmp_path), sample, client, 2)
    assert {request_id for request_id, _ in client.requests} == {"abc"}
    parameters = [parameters for _, parameters in client.requests]
    assert len({given["seed"] for given in parameters}) == 4
    for given in parameters:
        assert {"</search>", "</python>"} <= set(given["stop"]) and given["include_stop_str_in_output"]
        assert given["max_tokens"] <= 200 and given["top_k"] == -1 and given["logprobs"] is True


async def test_validation_is_one_trajectory_without_efficiency(codec: ChatTokenizer, tmp_path: Path) -> None:
    plan = verl_plan(group_size=8, initial_rollouts=4)
    sample = Sample.from_fields(loop_fields(split="valid", step=10))
    client = StubClient(caller(codec, dict.fromkeys(seeds(plan, sample, 1), 2), SEARCH, ANSWER))
    (made,) = await gather(host_of_plan(plan, codec, tmp_path), sample, client, 1)
    assert (made.reward.parts["sigma_tool"], made.reward.parts["sigma_length"], made.reward.tool_calls) == (0.0, 0.0, 2)
    folder = VerlFolder(tmp_path)
    assert len(folder.read_groups(10, validation=True)) == 1 and not folder.read_groups(10, validation=False)


@pytest.mark.parametrize("stop_reason", ["aborted", "completed"])
async def test_aborted_generation_is_retried_once(codec: ChatTokenizer, tmp_path: Path, stop_reason: str) -> None:
    plan = verl_plan()
    sample = Sample.from_fields(loop_fields())
    answers: Script = caller(codec, dict.fromkeys(seeds(plan, sample, 1), 0), SEARCH, ANSWER)
    left = [stop_reason]

    def output(**fields: Any) -> StubOutput:
        return StubOutput(**{**fields, "stop_reason": left.pop() if left else "completed"})

    client = StubClient(answers, output)
    (made,) = await gather(host_of_plan(plan, codec, tmp_path), sample, client, 1)
    assert isinstance(made, RewardedTrajectory) and len(client.requests) == 1 + (stop_reason == "aborted")


async def test_server_timeout_is_an_infrastructure_failure_without_a_trajectory(
    codec: ChatTokenizer, tmp_path: Path
) -> None:
    plan = verl_plan()
    sample = Sample.from_fields(loop_fields())
    answers = caller(codec, dict.fromkeys(seeds(plan, sample, 1), 0), SEARCH, ANSWER)
    left = [TimeoutError("the actor did not answer")]

    def script(request: CompletionRequest) -> Completion:
        if left:
            raise left.pop()
        return answers(request)

    client = StubClient(script)
    (made,) = await gather(host_of_plan(plan, codec, tmp_path), sample, client, 1)
    assert len(client.requests) == 2
    assert made.made.trajectory.status == "answered"


@pytest.mark.parametrize("broken", ["model", "plan"])
async def test_any_worker_start_failure_is_recorded(tmp_path: Path, broken: str) -> None:
    model = write_byte_tokenizer(tmp_path / "model")
    job = {
        "events": str(tmp_path / "events.jsonl"),
        "environments": {"default": NO_TOOLS},
        "model": str(tmp_path / "gone" if broken == "model" else model),
        "plan": {} if broken == "plan" else json.loads(verl_plan(environment=NO_TOOLS).to_json()),
    }
    path = tmp_path / "verl" / "job.json"
    path.parent.mkdir()
    path.write_text(json.dumps(job))
    with pytest.raises(Exception) as raised:
        await host_of(path)
    noted = VerlFolder(path.parent).environment_failure.read_text()
    assert noted.startswith(type(raised.value).__name__)


def test_unknown_data_source_is_named() -> None:
    with pytest.raises(DataError, match="hellaswag"):
        Sample.from_fields({**loop_fields(), "data_source": "hellaswag"})


def test_rows_become_verl_rows_with_rollout_messages(tmp_path: Path) -> None:
    rows = [
        {
            "question_key": f"k{index}", "question": f"Q{index}?", "choices": ["a", "b"] if index else [],
            "answers": ["A"], "domain": "choice" if index else "math", "dataset": "d", "score_tool": 0.5,
            "score_corr": 0.5, "rank": 0, "environment": "default",
        }
        for index in range(3)
    ]  # fmt: skip
    source, target = tmp_path / "rows.parquet", tmp_path / "train.parquet"
    pq.write_table(pa.Table.from_pylist(rows, TRAINING_SCHEMA), source)
    assert write_verl_rows(source, target, {"default": SETTINGS}, phase=2) == 3
    table = pq.read_table(target)
    assert table.schema.remove_metadata() == ENGINE_SCHEMA.remove_metadata()
    assert [field for field in ENGINE_SCHEMA if field not in list(VERL_SCHEMA)] == [ENGINE_SCHEMA.field("extra_info")]
    of_verl = list(VERL_SCHEMA.field("extra_info").type)
    assert list(ENGINE_SCHEMA.field("extra_info").type)[: len(of_verl)] == of_verl
    row = table.to_pylist()[1]
    assert row["prompt"] == [
        {"content": "Use tools.", "role": "system"},
        {"content": "Q1?\n\nA. a\nB. b", "role": "user"},
    ]
    assert [info["index"] for info in table["extra_info"].to_pylist()] == [0, 1, 2]
    sample = Sample.from_fields({**row, "uid": "u", "global_steps": 1})
    assert (sample.question.key, sample.question.choices, sample.question.domain) == ("k1", ("a", "b"), "choice")
    assert write_verl_rows(source, target, {"default": SETTINGS}, split="valid", only_first=True) == 1


def test_verl_session_starts_as_its_question_format_says(tmp_path: Path) -> None:
    row = {"question_key": "k", "question": "Q?", "choices": [], "answers": ["True"], "domain": "qa", "dataset": "d",
           "score_tool": 0.5, "score_corr": 0.5, "rank": 0, "format": "assertion", "scorer": "math",
           "environment": "default"}  # fmt: skip
    source, target = tmp_path / "rows.parquet", tmp_path / "train.parquet"
    pq.write_table(pa.Table.from_pylist([row], TRAINING_SCHEMA), source)
    environment = QuestionSettings()
    write_verl_rows(source, target, {"default": environment})
    (made,) = pq.read_table(target).to_pylist()
    asked = Sample.from_fields({**made, "uid": "u", "global_steps": 1}).question
    assert (asked.format, asked.domain, asked.rule) == ("assertion", "qa", "math")
    unscored = row | {"domain": "poetry", "scorer": None}
    pq.write_table(pa.Table.from_pylist([unscored], TRAINING_SCHEMA), source)
    write_verl_rows(source, target, {"default": environment})
    (other,) = pq.read_table(target).to_pylist()
    task = Sample.from_fields({**other, "uid": "u", "global_steps": 1}).question
    assert (task.domain, task.scorer) == ("poetry", None), "the environment scores it: a domain names no scorer"
    assert made["prompt"] == [dict(message) for message in environment.first_messages(asked)]
    assert made["prompt"][0]["content"] == environment.system_text_of("assertion") != environment.system_text
