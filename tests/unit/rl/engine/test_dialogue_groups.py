"""Groups of dialogues: hidden payloads reach episodes and scores, partner's messages are masked, both engines alike."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.rollouts.dialogues import Guess, Halving
from support.training.stub_verl import StubClient
from support.training.verl_plans import loop_fields, verl_plan

from treadle.agent.contract import Outcome, Task
from treadle.agent.token_ids import ORIGIN_SAMPLED
from treadle.api import StoredRollout
from treadle.core.chat import ChatTokenizer
from treadle.core.errors import EngineError
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.environments.custom.kind import CustomType
from treadle.environments.registry import ENVIRONMENTS
from treadle.environments.types import Resources
from treadle.rl.config import RlOptions
from treadle.rl.credit.outcome import group_advantages
from treadle.rl.engine.errors import BadPlan
from treadle.rl.engine.group_source import open_source
from treadle.rl.engine.rows import Payloads, read_tasks
from treadle.rl.engine.scorer import open_scorer
from treadle.rl.engine.verl.folder import VerlFolder
from treadle.rl.engine.verl.host import LoopHost
from treadle.rl.engine.verl.sample import Sample
from treadle.rl.environment import OpenEnvironment, ResidentEnvironments
from treadle.rl.groups.attempts import check_step
from treadle.rl.groups.dump import rollout_row, started_rollouts, write_started
from treadle.rl.training.stored_rows import PAYLOAD_SCHEMA
from treadle.rl.verl.rows import TRAINING_SCHEMA

TYPE = "support.rollouts.dialogues:Guess"
SETTINGS = ENVIRONMENTS.parse({"type": TYPE, "top": 15, "max_turns": 5})
SECRETS = {"a": 8, "b": 11, "c": 3}


class Scoreless(Guess):
    """A guess whose score fails."""

    async def score(self, task: Task, rollout: StoredRollout) -> float:
        raise KeyError("no judge")


class Slow(Guess):
    """A guess whose score does not end for some rollouts."""

    async def score(self, task: Task, rollout: StoredRollout) -> float:
        return 1.0 if len(rollout.turns) == 1 else await asyncio.get_running_loop().create_future()


class Unknown(Guess):
    """A guess that only sometimes has a reward."""

    async def score(self, task: Task, rollout: StoredRollout) -> Outcome | None:
        return None if len(rollout.turns) > 1 else Outcome(reward=-2.5, success=True)


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    return ChatTokenizer.load(write_byte_tokenizer(tmp_path_factory.mktemp("bytes")))


def write_payloads(path: Path) -> Path:
    rows = [{"question_key": key, "payload": json.dumps({"secret": secret})} for key, secret in SECRETS.items()]
    pq.write_table(pa.Table.from_pylist(rows, PAYLOAD_SCHEMA), path)
    return path


def tasks(folder: Path) -> list[Task]:
    blank = {name: None for name in TRAINING_SCHEMA.names} | {"choices": [], "answers": [], "dataset": "guess"}
    blank |= {"environment": "default"}
    rows = [blank | {"question_key": key, "question": "Guess.", "domain": "task"} for key in SECRETS]
    pq.write_table(pa.Table.from_pylist(rows, TRAINING_SCHEMA), folder / "rows.parquet")
    return read_tasks(folder / "rows.parquet", Payloads(write_payloads(folder / "payloads.parquet")))


class Player:
    """Halving with log-probabilities, as engines generate."""

    def __init__(self, codec: ChatTokenizer) -> None:
        self.halving = Halving(codec, 15)

    def __call__(self, request: CompletionRequest) -> Completion:
        made = self.halving.answer(request)
        assert made.token_ids is not None
        return Completion(
            made.text, made.token_ids, "stop", None, 1, len(made.token_ids), "", 0, 0, (-0.5,) * len(made.token_ids)
        )


def plan_of(settings: Any = SETTINGS, **keys: Any) -> Any:
    return verl_plan(num_rows=8, environment=settings, group_size=2, prompts_per_step=3, mini_batch_prompts=3, **keys)


def rolled_out(folder: Path, codec: ChatTokenizer, settings: Any = SETTINGS, **keys: Any) -> Any:
    player = Player(codec)
    plan, limits = plan_of(settings, **keys), {"max_model_len": None, "max_batch": None}
    environments = {"default": settings}
    with open_source(plan, {}, environments, lambda many: [player(one) for one in many], codec, **limits) as source:
        return source.step(1, tasks(folder)), source.validate(tasks(folder))


def test_rewards_are_the_environments_scores(tmp_path: Path, codec: ChatTokenizer) -> None:
    groups, validated = rolled_out(tmp_path, codec)
    # Halving finds 8 at once, 11 and 3 with its fourth guess.
    found = [[reward.reward for reward in one.rewards] for one in groups]
    assert found == [[1.0] * 2, [pytest.approx(0.7)] * 2, [pytest.approx(0.7)] * 2]
    assert [reward.reward for reward in validated] == [one.rewards[0].reward for one in groups]
    for one in groups:
        assert all(reward.scored and reward.parts == {} and reward.score == reward.reward for reward in one.rewards)


def test_partner_messages_are_masked_and_end_of_turn_ids_are_trained(tmp_path: Path, codec: ChatTokenizer) -> None:
    groups, _ = rolled_out(tmp_path, codec)
    made = groups[1].group.trajectories[0]
    (sample,) = made.trajectory.samples
    assert made.env_mask == [int(origin == ORIGIN_SAMPLED) for origin in sample.origins]
    pairs = list(zip(made.completion_ids, made.env_mask, strict=True))
    sampled = codec.decode([id_ for id_, mask in pairs if mask])
    written = codec.decode([id_ for id_, mask in pairs if not mask])
    assert "I say" in sampled and "Higher" not in sampled and "Lower" not in sampled
    assert "Lower." in written or "Higher." in written
    ends = sum(
        id_ == codec.turn_end_ids[0] for id_, mask in zip(made.completion_ids, made.env_mask, strict=True) if mask
    )
    assert ends == made.trajectory.num_turns


def test_rows_of_a_training_hold_turn_rewards_but_no_payload(tmp_path: Path, codec: ChatTokenizer) -> None:
    groups, _ = rolled_out(tmp_path, codec)
    made, rewards = groups[2].group.trajectories, groups[2].rewards
    rows = [rollout_row(1, groups[2].group, *pair) for pair in zip(made, rewards, strict=True)]
    assert rows[0]["turn_rewards"][-1] == 1.0 and set(rows[0]["turn_rewards"][:-1]) == {None}
    assert not rows[0]["truncated"] and rows[0]["finish"] == "finished" and "secret" not in json.dumps(rows)


def test_verl_sessions_get_the_same_rewards(tmp_path: Path, codec: ChatTokenizer) -> None:
    payloads, folder = Payloads(write_payloads(tmp_path / "payloads.parquet")), VerlFolder(tmp_path)

    async def join(key: str) -> list[float]:
        client = StubClient(Player(codec))
        fields = loop_fields(key, uid=key, answers=(), text="Guess.") | {"data_source": "treadle_task"}
        sample, sampling = Sample.from_fields(fields), {"temperature": 1.0}
        async with CustomType(Guess).open(SETTINGS, Resources()) as runtime:
            with open_scorer(plan_of(), {"default": SETTINGS}) as scorer:
                opened = {"default": OpenEnvironment(SETTINGS, runtime)}
                host = LoopHost(plan_of(), opened, codec, codec.vocab_size, folder, scorer, payloads)
                sessions = [host.join(sample, number, 2, client, sampling) for number in range(2)]
                return [made.reward.reward for made in await asyncio.gather(*sessions)]

    groups, _ = rolled_out(tmp_path, codec)
    for key, one in zip(SECRETS, groups, strict=True):
        assert asyncio.run(join(key)) == [reward.reward for reward in one.rewards]


def test_unknown_reward_is_left_out_and_never_zero(tmp_path: Path, codec: ChatTokenizer) -> None:
    settings = ENVIRONMENTS.parse({"type": f"{__name__}:Unknown", "top": 15, "max_turns": 5})
    groups, _ = rolled_out(tmp_path, codec, settings)
    assert [(reward.reward, reward.scored, reward.score) for reward in groups[0].rewards] == [(-2.5, True, 0.0)] * 2
    assert not any(reward.scored for reward in groups[1].rewards)


def test_score_that_does_not_end_leaves_its_rollouts_out(tmp_path: Path, codec: ChatTokenizer) -> None:
    settings = ENVIRONMENTS.parse({"type": f"{__name__}:Slow", "top": 15, "max_turns": 5, "rollout_time_s": 0.2})
    groups, _ = rolled_out(tmp_path, codec, settings)
    assert [[reward.scored for reward in one.rewards] for one in groups] == [[True] * 2, [False] * 2, [False] * 2]


def test_error_of_a_score_is_named(tmp_path: Path, codec: ChatTokenizer) -> None:
    settings = ENVIRONMENTS.parse({"type": f"{__name__}:Scoreless", "top": 15, "max_turns": 5})
    with pytest.raises(EngineError, match=r"rollouts of task a could not be scored: .*Scoreless.score raised KeyError"):
        rolled_out(tmp_path, codec, settings)


@pytest.mark.covers("service-16")
def test_step_whose_prompts_are_all_too_long_is_refused_without_a_request(tmp_path: Path, codec: ChatTokenizer) -> None:
    asked: list[Any] = []

    def generate(many: Sequence[Any]) -> list[Any]:
        asked.extend(many)
        return [Player(codec)(one) for one in many]

    plan = plan_of(max_prompt_tokens=20)
    with (
        open_source(plan, {}, {"default": SETTINGS}, generate, codec, max_model_len=None, max_batch=None) as source,
        pytest.raises(EngineError, match="only 0 of 6 .*too long prompts 6.*more than rl.max_prompt_tokens = 20"),
    ):
        check_step([one.group for one in source.step(1, tasks(tmp_path))])
    assert not asked


def test_validation_question_whose_prompt_is_too_long_is_named(tmp_path: Path, codec: ChatTokenizer) -> None:
    with (
        open_source(
            plan_of(max_prompt_tokens=20), {}, {"default": SETTINGS}, lambda many: [], codec,
            max_model_len=None, max_batch=None,
        ) as source,
        pytest.raises(EngineError, match=r"validation: task a begins with .* tokens, more than .*= 20.*\(3 of 3 q"),
    ):  # fmt: skip
        source.validate(tasks(tmp_path))


def test_missing_payload_is_refused(tmp_path: Path) -> None:
    payloads = Payloads(write_payloads(tmp_path / "payloads.parquet"))
    with pytest.raises(BadPlan, match="payload of task z is missing"):
        payloads.added_to(Task("z", "Guess."))


@pytest.mark.covers("service-18")
def test_tasks_that_share_an_id_of_their_environment_are_groups_of_their_own(
    tmp_path: Path, codec: ChatTokenizer
) -> None:
    """Synthetic tasks share the `task_id` of their seed; groups are joined by the question."""
    made = [replace(task, payload={**task.payload, "task_id": "seed-7"}) for task in tasks(tmp_path)]
    plan, player = plan_of(), Player(codec)
    with open_source(
        plan, {}, {"default": SETTINGS}, lambda many: [player(one) for one in many], codec,
        max_model_len=None, max_batch=None,
    ) as source:  # fmt: skip
        groups = source.step(1, made)
    assert len({one.group.group_id for one in groups}) == 3
    assert [one.group.question.key for one in groups] == list(SECRETS)
    # Each group is compared with itself alone: its two rewards are equal, those of the groups are not.
    found = [[reward.reward for reward in one.rewards] for one in groups]
    assert found == [[1.0] * 2, [pytest.approx(0.7)] * 2, [pytest.approx(0.7)] * 2]
    assert [group_advantages(rewards) for rewards in found] == [[0.0] * 2] * 3


def test_source_over_samples_training_but_not_validation(tmp_path: Path, codec: ChatTokenizer) -> None:
    plan = plan_of()
    options = RlOptions(engine="trl", group_size=2, oversample=3.0, audit_share=0.5, reward="outcome")
    plan, player = plan.model_copy(update={"options": options}), Player(codec)
    with open_source(
        plan, {}, {"default": SETTINGS}, lambda many: [player(one) for one in many], codec,
        max_model_len=None, max_batch=None,
    ) as source:  # fmt: skip
        groups, validated = source.step(1, tasks(tmp_path)), source.validate(tasks(tmp_path))
        again = source.step(1, tasks(tmp_path))
    assert [len(one.rewards) for one in groups] == [2] * 3 and len(validated) == 3
    assert [len(one.group.started) for one in groups] == [6] * 3
    # All play alike, so all finish with the same batch and the same reward, and none has to be cancelled.
    rewards = [one.reward for one in groups[1].group.started if one.reward is not None]
    assert len(rewards) >= 4 and rewards == pytest.approx([0.7] * len(rewards))
    assert [one.group.started for one in again] == [one.group.started for one in groups]
    write_started(tmp_path, 1, [one.group for one in groups])
    lines = list(started_rollouts(tmp_path, 1))
    assert len(lines) == 18 and {line["use"] for line in lines} <= {"trained", "unused", "audit", "cancelled"}
    assert Counter(line["use"] for line in lines)["trained"] == 6
    assert not list(started_rollouts(tmp_path, 0)), "steps of a state that was lost do not count"


def test_exit_in_code_of_a_user_is_an_error_and_other_work_continues() -> None:
    leaving = {"default": ENVIRONMENTS.parse({"type": "support.rollouts.dialogues:Leaving"})}
    with pytest.raises(RuntimeError, match="tried to end the process"), ResidentEnvironments(leaving):
        pass

    async def leave() -> None:
        sys.exit(0)

    async def work() -> None:
        await asyncio.gather(leave())

    with ResidentEnvironments({"default": SETTINGS}) as resident:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="tried to end the process"):
                resident.run(work())
        assert resident.run(asyncio.sleep(0, 7)) == 7
