"""Groups of two kinds of environments in one step: one batch, each its own dialect, payload, scorer and figures."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.rollouts.dialogues import Guess, Halving
from support.training.stub_verl import StubClient
from support.training.verl_plans import verl_files, verl_plan

from treadle.agent.contract import Task
from treadle.api import Done, ModelTurn, StoredRollout
from treadle.core.chat import ChatTokenizer
from treadle.core.config import load_config
from treadle.core.errors import ConfigError
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.environments.question.settings import QuestionSettings
from treadle.environments.registry import ENVIRONMENTS
from treadle.rl.config import RlOptions, RlSettings
from treadle.rl.credit.outcome import group_advantages
from treadle.rl.engine.errors import BadEnvironment
from treadle.rl.engine.group_source import open_source
from treadle.rl.engine.rows import Payloads, check_rows, first_prompt, job_environments, read_tasks
from treadle.rl.engine.scorer import open_scorer
from treadle.rl.engine.verl.folder import VerlFolder
from treadle.rl.engine.verl.host import LoopHost
from treadle.rl.engine.verl.sample import Sample
from treadle.rl.environment import open_environments
from treadle.rl.training.figures import step_figures, validation_figures
from treadle.rl.training.plan import RlPlan, plan_phase
from treadle.rl.training.stored_rows import PAYLOAD_SCHEMA
from treadle.rl.trl.config import trl_arguments
from treadle.rl.verl.config import verl_overrides
from treadle.rl.verl.data import write_verl_rows, write_verl_steps
from treadle.rl.verl.rows import TRAINING_SCHEMA

SCALE = 1000.0
OPTIONS: dict[str, Any] = {
    "group_size": 4, "prompts_per_step": 4, "mini_batch_prompts": 2, "reward": {"sigma_tool": 0.0, "sigma_length": 0.1},
    "max_prompt_tokens": 400, "max_response_tokens": 400,
}  # fmt: skip


class Dear(Guess):
    """A slow guess whose rewards are of another scale."""

    async def step(self, turn: ModelTurn) -> str | Done:
        for _ in range(50):
            await asyncio.sleep(0)
        return await super().step(turn)

    async def score(self, task: Task, rollout: StoredRollout) -> float:
        return SCALE * await super().score(task, rollout)


QUESTION = QuestionSettings.model_validate(
    {"system_prompt": "Answer.", "search": {"enabled": False}, "python": {"enabled": False}}
)
GUESS = ENVIRONMENTS.parse({"type": f"{__name__}:Dear", "top": 15, "max_turns": 5})
MIXTURE = {"default": QUESTION, "guess": GUESS}
SECRETS = {"g0": 8, "g1": 11, "g2": 3}


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    return ChatTokenizer.load(write_byte_tokenizer(tmp_path_factory.mktemp("bytes")))


def row(key: str, text: str, environment: str, domain: str, answers: tuple[str, ...] = ()) -> dict[str, Any]:
    return {name: None for name in TRAINING_SCHEMA.names} | {
        "question_key": key, "question": text, "choices": [], "answers": list(answers), "domain": domain,
        "dataset": environment, "environment": environment, "score_tool": 0.5, "score_corr": 0.5, "rank": 0,
    }  # fmt: skip


ROWS = [
    row("q0", "What is 6 x 7?", "default", "math", ("42",)),
    *(row(key, "Guess.", "guess", "task") for key in SECRETS),
]


def write_files(folder: Path) -> tuple[Path, Payloads]:
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(ROWS, TRAINING_SCHEMA), folder / "rows.parquet")
    secrets = {"q0": "{}", **{key: json.dumps({"secret": number}) for key, number in SECRETS.items()}}
    payloads = [{"question_key": key, "payload": text} for key, text in secrets.items()]
    pq.write_table(pa.Table.from_pylist(payloads, PAYLOAD_SCHEMA), folder / "payloads.parquet")
    return folder / "rows.parquet", Payloads(folder / "payloads.parquet")


def make_plan(shares: dict[str, float] | None = None, rows: dict[str, int] | None = None, **options: Any) -> RlPlan:
    chosen = load_config(RlOptions, data={**OPTIONS, "shares": shares or {}, **options})
    settings = RlSettings(options=chosen, environment=QUESTION, environments={"guess": GUESS}, seed=1)
    return plan_phase(settings, address="1/rl@phase-1", rows_digest="", rows=rows or {"default": 4, "guess": 4})


class Player:
    """Answers the question rightly or wrongly by seed, and guesses by halving, from a random first guess."""

    def __init__(self, codec: ChatTokenizer) -> None:
        self.codec = codec
        self.halving = Halving(codec, 15)
        self.batches: list[int] = []

    def generate(self, requests: Any) -> list[Completion]:
        self.batches.append(len(requests))
        return [self(request) for request in requests]

    def __call__(self, request: CompletionRequest) -> Completion:
        assert isinstance(request.prompt, list)
        if "What is" in self.codec.decode(request.prompt):
            text = f"<think>a</think><answer>\\boxed{{{42 + request.seed % 2}}}</answer>"
            ids = (*self.codec.encode(text), min(self.codec.eos_ids))
            return Completion(text, ids, "stop", None, 1, len(ids), "", 0, 0, (-0.5,) * len(ids))
        made = self.halving.answer(request)
        assert made.token_ids is not None
        return replace(made, logprobs=(-0.5,) * len(made.token_ids))


def test_kinds_share_batches_and_each_has_its_own_scorer_and_dialect(tmp_path: Path, codec: ChatTokenizer) -> None:
    player, plan = Player(codec), make_plan()
    tasks = read_tasks(*write_files(tmp_path))
    limits = {"max_model_len": None, "max_batch": None}
    with open_source(plan, {}, MIXTURE, player.generate, codec, **limits) as source:
        groups, validated = source.step(1, tasks), source.validate(tasks)
    assert player.batches[0] == 16, "the first turns of all kinds are one batch"
    question, *guesses = groups
    assert all(reward.scorer.startswith("math") for reward in question.rewards)
    assert {reward.answer for reward in question.rewards} <= {"42", "43"}
    assert {made.trajectory.status for made in question.group.trajectories} == {"answered"}
    found = [[reward.reward / SCALE for reward in one.rewards] for one in guesses]
    assert found == [[1.0] * 4, [pytest.approx(0.7)] * 4, [pytest.approx(0.7)] * 4]
    assert {reward.scorer for one in guesses for reward in one.rewards} == {"environment"}
    assert [reward.scorer.startswith("math") for reward in validated] == [True, False, False, False]
    assert [one.group.question.environment for one in groups] == ["default", "guess", "guess", "guess"]


def test_batch_waits_for_the_slower_kind(tmp_path: Path, codec: ChatTokenizer) -> None:
    player = Player(codec)
    slow = read_tasks(*write_files(tmp_path))[2]
    quick = replace(slow, key="quick", environment="quick")
    environments = {
        "guess": GUESS,
        "quick": ENVIRONMENTS.parse({"type": "support.rollouts.dialogues:Guess", "top": 15}),
    }
    limits = {"max_model_len": None, "max_batch": None}
    with open_source(make_plan(), {}, environments, player.generate, codec, **limits) as source:
        source.step(1, [slow, quick])
    assert player.batches == [8] * 4, "four guesses find 11, in both kinds at once"


def test_kind_is_rolled_out_alike_alone_and_in_a_mixture(tmp_path: Path, codec: ChatTokenizer) -> None:
    tasks = read_tasks(*write_files(tmp_path))
    limits = {"max_model_len": None, "max_batch": None}

    def made(environments: Any, chosen: list[Task]) -> list[Any]:
        with open_source(make_plan(), {}, environments, Player(codec).generate, codec, **limits) as source:
            return [
                [
                    (one.completion_ids, one.seed, reward)
                    for one, reward in zip(g.group.trajectories, g.rewards, strict=True)
                ]
                for g in source.step(1, chosen)
            ]

    assert made(MIXTURE, tasks) == [*made({"default": QUESTION}, tasks[:1]), *made({"guess": GUESS}, tasks[1:])]


def test_advantages_do_not_depend_on_the_scale_of_an_environment() -> None:
    """Rewards are compared within a group, so an environment of scale 1000 gets no larger advantages than one of 1."""
    rewards = [0.1, 0.9, 0.4, 0.4]
    large = group_advantages([SCALE * reward for reward in rewards])
    assert large == pytest.approx(group_advantages(rewards), rel=1e-5) and max(large) > 1
    assert trl_arguments(make_plan(), Path("/output"))["scale_rewards"] == "group"
    with pytest.raises(ConfigError, match="scale_rewards"):
        make_plan(extra={"scale_rewards": "batch"})
    verl = verl_plan(extra={"algorithm.norm_adv_by_std_in_grpo": False})
    with pytest.raises(ConfigError, match="norm_adv_by_std_in_grpo is set by other keys"):
        verl_overrides(verl, verl_files())


def test_verl_reads_the_steps_of_shares_in_their_order() -> None:
    given = {"prompts_per_step": 4, "mini_batch_prompts": 4, "num_epochs": 3}
    plain = verl_overrides(verl_plan(**given), verl_files())
    shared = verl_overrides(verl_plan(shares={"default": 1.0}, **given), verl_files())
    assert (plain["data.shuffle"], plain["trainer.total_epochs"]) == (True, 3)
    assert (shared["data.shuffle"], shared["trainer.total_epochs"]) == (False, 1)
    assert shared["trainer.total_training_steps"] == plain["trainer.total_training_steps"]
    for key in ("algorithm.filter_groups.enable", "trainer.v1.sampler.sync_refill_failed_groups"):
        verl_overrides(verl_plan(extra={key: True}, **given), verl_files())
        with pytest.raises(ConfigError, match=f"each step has its own rows, which {key} would replace"):
            verl_overrides(verl_plan(shares={"default": 1.0}, extra={key: True}, **given), verl_files())


def test_sessions_of_verl_use_the_environment_of_their_row(tmp_path: Path, codec: ChatTokenizer) -> None:
    path, payloads = write_files(tmp_path)
    plan, limits = make_plan(), {"max_model_len": None, "max_batch": None}
    write_verl_rows(path, tmp_path / "train.parquet", MIXTURE)
    rows = pq.read_table(tmp_path / "train.parquet").to_pylist()
    assert [len(one["prompt"]) for one in rows] == [2, 1, 1, 1], "system message of `question` alone"
    assert "secret" not in json.dumps(rows)

    async def joined(fields: dict[str, Any]) -> list[float]:
        sample = Sample.from_fields({**fields, "uid": fields["extra_info"]["id"], "global_steps": 1})
        async with open_environments(MIXTURE) as opened:
            with open_scorer(plan, MIXTURE) as scorer:
                folder = VerlFolder(tmp_path)
                host = LoopHost(plan, opened, codec, codec.vocab_size, folder, scorer, payloads)
                client = StubClient(Player(codec))
                sessions = [host.join(sample, number, 4, client, {"temperature": 1.0}) for number in range(4)]
                return [made.reward.reward for made in await asyncio.gather(*sessions)]

    with open_source(plan, {}, MIXTURE, Player(codec).generate, codec, **limits) as source:
        guesses = source.step(1, read_tasks(path, payloads))[1:]
    for fields, one in zip(rows[1:], guesses, strict=True):
        assert asyncio.run(joined(fields)) == [reward.reward for reward in one.rewards]
    lines = [line["row"] for group in VerlFolder(tmp_path).read_groups(1, validation=False) for line in group]
    assert {(line["environment"], line["dataset"]) for line in lines} == {("guess", "guess")}


def test_rows_of_verl_are_in_the_order_of_the_steps(tmp_path: Path) -> None:
    path, _ = write_files(tmp_path)
    steps = [[1, 0], [3, 2], [0, 1]]
    assert write_verl_steps(path, tmp_path / "train.parquet", MIXTURE, steps) == 6
    infos = pq.read_table(tmp_path / "train.parquet")["extra_info"].to_pylist()
    assert [info["id"] for info in infos] == ["g0", "q0", "g2", "g1", "q0", "g0"]
    assert [info["index"] for info in infos] == list(range(6)), "each is unique, and so are the seeds of groups"
    assert [info["environment"] for info in infos] == ["guess", "default", "guess", "guess", "default", "guess"]


def test_prompts_are_measured_in_the_environment_of_their_row(tmp_path: Path, codec: ChatTokenizer) -> None:
    path, payloads = write_files(tmp_path)
    tasks = read_tasks(path, payloads)
    check_rows(tasks, 4, 400, MIXTURE, codec)
    question = len(codec.prompt_ids(QUESTION.first_messages(tasks[0])))
    assert len(first_prompt(path, MIXTURE, codec)) == question
    with pytest.raises(Exception, match="1 of 4 prompts are longer"):
        check_rows(tasks, 4, question - 1, MIXTURE, codec)


def test_each_environment_of_a_job_must_be_that_of_the_plan() -> None:
    plan = json.loads(make_plan().to_json())
    assert plan["environment_digests"] == {name: one.digest() for name, one in MIXTURE.items()}
    job = {"plan": plan, "environments": {name: one.model_dump(mode="json") for name, one in MIXTURE.items()}}
    assert list(job_environments(job)) == ["default", "guess"]
    job["environments"]["guess"]["top"] = 16
    with pytest.raises(BadEnvironment, match=r"\(environments\.guess, digest "):
        job_environments(job)


def test_figures_are_also_by_environment(tmp_path: Path, codec: ChatTokenizer) -> None:
    tasks = read_tasks(*write_files(tmp_path))
    limits = {"max_model_len": None, "max_batch": None}
    with open_source(make_plan(), {}, MIXTURE, Player(codec).generate, codec, **limits) as source:
        groups, validated = source.step(1, tasks), source.validate(tasks)
    names, rewards = [task.environment for task in tasks], [one.rewards for one in groups]
    figures = step_figures(rewards, names)
    assert figures["environments"]["guess"]["num_rollouts"] == 12
    assert figures["environments"]["guess"]["reward"] == pytest.approx(800.0)
    assert figures["environments"]["default"]["reward"] <= 1.0
    assert "environments" not in step_figures(rewards)
    checked = validation_figures(validated, [task.domain for task in tasks], names)
    assert checked["by_environment"].keys() == {"default", "guess"} and checked["by_domain"].keys() == {"math", "task"}
    assert checked["by_environment"]["guess"]["num_questions"] == 3


@pytest.mark.parametrize(
    ("shares", "rows", "said"),
    [
        ({"default": 1.0}, {"default": 4, "guess": 3}, "3 rows are of environment guess, which has no share"),
        ({"default": 0.25, "guess": 0.75}, {"default": 9}, "gives guess up to 3 questions of a step, but only 0 rows"),
        ({"default": 0.3, "guess": 0.7}, {"default": 1, "guess": 9}, "gives default up to 2 questions .* only 1 rows"),
    ],
)
def test_shares_that_the_rows_do_not_allow_are_refused(
    shares: dict[str, float], rows: dict[str, int], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        make_plan(shares, rows)


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ({"default": 0.5}, "sum 0.5, not 1"),
        ({"default": 0.5, "guess": 0.5001}, r"sum 1\.0001, not 1"),
        ({"default": -0.5, "guess": 1.5}, "greater than or equal to 0"),
        ({"default": float("nan"), "guess": 1.0}, "nan|finite"),
    ],
)
def test_numbers_that_are_no_shares_are_refused(shares: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(RlOptions, data={"shares": shares})


def test_sum_of_shares_may_be_rounded_and_zero_leaves_an_environment_out() -> None:
    plan = make_plan({"default": 0.0, "guess": 1.0}, {"default": 5, "guess": 4})
    assert plan.steps_per_epoch == 2 and RlPlan.from_json(plan.to_json()) == plan
    load_config(RlOptions, data={"shares": {"a": 0.333333, "b": 0.333333, "c": 0.333334 + 5e-7}})
