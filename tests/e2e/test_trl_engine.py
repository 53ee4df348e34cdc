"""RL of a small policy by real TRL with real tools: killed and resumed, tensors, LoRA, refusals."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.credit.worked_example import ALLOCATED, DECOUPLED, FLAGS, REWARDS
from support.runs.processes import end_family, kill_alone, remaining, until
from support.training import trl_jobs

from treadle.core.chat import ChatTokenizer
from treadle.core.engines.environments import engine_environ, python_of
from treadle.core.engines.training import EngineOptions
from treadle.core.errors import ConfigError, EngineError
from treadle.rl.credit.outcome import group_advantages
from treadle.rl.groups.dump import drawn_questions
from treadle.rl.training.launch import EngineJob, RlFolder, reinforce
from treadle.rl.training.plan import RlPlan

CHECKS = Path(__file__).parents[1] / "support" / "training" / "trl_engine_checks.py"
GOLDEN = Path(__file__).parents[1] / "unit" / "golden" / "group_rollouts.json"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RlFolder]:
    """Yield a reinforcement's folder, with its rows."""
    made = RlFolder(tmp_path / "training")
    made.logs.mkdir(parents=True)
    trl_jobs.write_rows(made.parquet)
    yield made
    shutil.rmtree(made.path, ignore_errors=True)


def job_of(policy: Path) -> EngineJob:
    return EngineJob(model=str(policy), environments=trl_jobs.environments_json(), interpreter=trl_jobs.interpreter())


@pytest.mark.covers("pareto-32")
def test_killed_rl_run_resumes_and_exports_its_policy(folder: RlFolder, policy: Path) -> None:
    trl_jobs.write_rows(folder.validation, 2)
    plan = trl_jobs.make_plan(num_validation_rows=2, num_epochs=2, learning_rate=1e-3)
    (folder.path / "given.json").write_text(plan.to_json())
    tests = str(Path(__file__).parents[1])
    parent = subprocess.Popen([sys.executable, "-c", trl_jobs.PARENT, str(folder.path), str(policy), tests])
    try:
        saved = '"event": "saved"'
        until(lambda: parent.poll() is not None or saved in text(folder.events), "a state is saved", limit_s=400)
        orphans = kill_alone(parent)
        until(lambda: not remaining(orphans), "the training has ended with Treadle", limit_s=10.0)
    finally:
        end_family(parent)
    assert not folder.trained.exists(), "it was over before it was killed"

    done = reinforce(folder, plan, job_of(policy), EngineOptions(variant="cpu"))
    assert done.resumed_step >= 1 and done.num_steps == 4 and [step.step for step in done.steps] == [1, 2, 3, 4]
    assert [validation.step for validation in done.validations] == [1, 2, 3, 4]
    assert all(step.num_rollouts == 8 and step.num_groups == 2 for step in done.steps)
    assert sum(step.calls or 0 for step in done.steps) > 0 and any(step.score for step in done.steps)
    assert done.greedy is not None and done.live_greedy is not None and done.greedy.ids == done.live_greedy.ids
    assert ChatTokenizer.load(done.model).digest == ChatTokenizer.load(policy).digest
    assert (done.model / "tokenizer.json").read_bytes() == (policy / "tokenizer.json").read_bytes()
    rows = [orjson.loads(line) for path in sorted(folder.rollouts.iterdir()) for line in path.read_bytes().splitlines()]
    groups = [(row["step"], row["group"], row["session"]) for row in rows]
    places = itertools.product((1, 2, 3, 4), (0, 1), range(4))
    assert groups == [(step, f"{step}-{place}", session) for step, place, session in places]
    assert {row["question_key"] for row in rows if row["step"] < 3} == {"q0", "q1", "q2", "q3"}
    called = [row for row in rows if row["tool_calls"]]
    assert called and all("<result>" in row["output"] and row["model_tokens"] < row["total_tokens"] for row in called)


def drawing_plan(**keys: Any) -> RlPlan:
    """Return a plan with dynamic sampling, of two draws per step at most."""
    sampling = {"dynamic_sampling": True, "gen_prompts": 2, "max_extra_batches": 1, "overlong": "buffer", **keys}
    return trl_jobs.make_plan(num_epochs=2, group_size=2, learning_rate=1e-3, reward="outcome", **sampling)


@pytest.mark.covers("planning-19")
def test_dynamic_sampling_draws_until_groups_differ(folder: RlFolder, policy: Path) -> None:
    plan = drawing_plan()
    done = reinforce(folder, plan, job_of(policy), EngineOptions(variant="cpu"))
    assert [step.step for step in done.steps] == [1, 2, 3, 4]
    assert all(step.num_groups == 2 and "overlong" in (step.parts or {}) for step in done.steps)
    for step in done.steps:
        drawn = (step.num_draws or 0) * 2
        assert drawn == 2 + (step.num_dropped_groups or 0) + (step.num_surplus_groups or 0)
        assert step.num_draws == 2 or not step.num_equal_groups
    assert any(step.num_draws == 2 for step in done.steps)
    for path in folder.rollouts.glob("step-*.jsonl"):
        rows = [orjson.loads(line) for line in path.read_bytes().splitlines()]
        assert len(rows) == 4 and len({row["question_key"] for row in rows}) == 2
    drawn = drawn_questions(folder.rollouts, 4)
    assert sum(one["num_draws"] for one in drawn) == sum(2 * (step.num_draws or 0) for step in done.steps)
    assert all(len(rewards) == 2 for one in drawn for rewards in one["rewards"])


def steps_of(folder: RlFolder) -> dict[str, bytes]:
    """Return the files of the rollouts and draws of each step."""
    return {str(path.relative_to(folder.rollouts)): path.read_bytes() for path in folder.rollouts.rglob("*.jsonl")}


@pytest.mark.sweep
@pytest.mark.covers("planning-19")
def test_dynamic_sampling_killed_in_a_step_draws_the_same_groups(
    folder: RlFolder, policy: Path, tmp_path: Path
) -> None:
    plan = drawing_plan()
    (folder.path / "given.json").write_text(plan.to_json())
    tests = str(Path(__file__).parents[1])
    killed = subprocess.Popen([sys.executable, "-c", trl_jobs.PARENT, str(folder.path), str(policy), tests])
    try:
        drawn = folder.rollouts / "draws" / "step-000002.jsonl"
        until(lambda: killed.poll() is not None or drawn.exists(), "the second step has its draws", limit_s=400)
    finally:
        end_family(killed)
    assert '"state": "checkpoint-2"' not in text(folder.events), "the step was over before it was killed"
    resumed = reinforce(folder, plan, job_of(policy), EngineOptions(variant="cpu"))
    assert resumed.resumed_step == 1

    calm = RlFolder(tmp_path / "calm")
    trl_jobs.write_rows(calm.parquet)
    undisturbed = reinforce(calm, plan, job_of(policy), EngineOptions(variant="cpu"))
    assert undisturbed.resumed_step == 0 and len(undisturbed.steps) == len(resumed.steps) == 4
    assert steps_of(folder) == steps_of(calm) and len(steps_of(calm)) == 8
    assert (folder.model / "model.safetensors").read_bytes() == (calm.model / "model.safetensors").read_bytes()


@pytest.mark.sweep
@pytest.mark.covers("planning-19")
def test_questions_whose_groups_are_all_equal_end_training_in_one_line(folder: RlFolder, policy: Path) -> None:
    table = pq.read_table(folder.parquet)
    impossible = pa.array([["no such number"]] * len(table), table.schema.field("answers").type)
    answers = table.schema.get_field_index("answers")
    pq.write_table(table.set_column(answers, table.schema.field(answers), impossible), folder.parquet)
    with pytest.raises(EngineError) as caught:
        reinforce(folder, drawing_plan(max_extra_batches=10), job_of(policy), EngineOptions(variant="cpu"))
    message = str(caught.value)
    assert "step 1: in all 2 draws the rewards of every group were equal (4 questions)" in message
    assert "Traceback" not in message and len(message.splitlines()) == 1


@pytest.fixture(scope="module")
def checks(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what the engine reports of its internals, and of an RL training with LoRA."""
    folder = RlFolder(tmp_path_factory.mktemp("lora"))
    trl_jobs.write_rows(folder.parquet)
    plan = trl_jobs.make_plan(finetuning_type="lora", learning_rate=1e-2, mini_batch_prompts=1, max_steps=1)
    job = folder.path / "job.json"
    job.write_text(json.dumps(job_json(folder, plan, policy)))
    environ = engine_environ({"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_WAIT_POLICY": "passive"})
    tests = str(Path(__file__).parents[1])
    done = subprocess.run(
        [str(python_of("trl", "cpu")), str(CHECKS), str(policy), str(job)],
        env={**environ, "PYTHONPATH": os.pathsep.join([environ["PYTHONPATH"], tests])},
        cwd="/",
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    answer["folder"] = folder
    return answer


def job_json(folder: RlFolder, plan: RlPlan, policy: Path) -> dict[str, Any]:
    return {
        "plan": json.loads(plan.to_json()),
        "environments": trl_jobs.environments_json(),
        "interpreter": trl_jobs.interpreter(),
        "rows": str(folder.parquet),
        "validation": None,
        "model": str(policy),
        "output": str(folder.output),
        "final": str(folder.model),
        "events": str(folder.events),
        "rollouts": str(folder.rollouts),
        "resume": None,
        "state": None,
        "greedy_tokens": 16,
    }


@pytest.mark.covers("planning-17")
def test_batched_generation_matches_single_sequences(checks: dict[str, Any]) -> None:
    found = checks["generation"]
    assert found["greedy_agrees"] and found["draws_agree"] and found["distinct_draws"] > 4
    text_, stop, reason = found["stopped"]
    assert text_.endswith("</think>") and text_.count("</think>") == 1 and (stop, reason) == ("</think>", "stop")
    assert found["logprob_error"] < 1e-4


def test_update_contains_whole_groups_and_averages_over_its_own_tokens(checks: dict[str, Any]) -> None:
    found, expected = checks["updates"], json.loads(GOLDEN.read_text())
    assert [update["prompts"] for update in found] == [[group["prompt"]] for group in expected]
    for update in found:
        assert update["loss"] == pytest.approx(update["token_mean"], abs=1e-6)
    assert len({round(update["token_mean"], 4) for update in found}) == 3


def test_training_with_all_zero_masks_learns_nothing(checks: dict[str, Any]) -> None:
    events = {event["event"]: event for event in checks["muted"]}
    assert events["step"]["grad_norm"] == events["step"]["loss"] == 0.0 and "saved" in events
    assert "end" not in events and events["exit"]["code"] == 1
    assert events["error"]["kind"] == "nothing_learned" and "no update had a gradient" in events["error"]["message"]


def test_policy_unsupported_for_cpu_rollouts_is_refused_before_loading_weights(
    checks: dict[str, Any],
) -> None:
    assert "qwen2" in checks["refused"] and "(gemma2)" in checks["refused"]


def test_context_is_limited_by_the_model_window_and_vllm(checks: dict[str, Any]) -> None:
    assert checks["windows"] == [1024, 460, 256, 460, None]


def test_shared_prompts_change_neither_values_nor_gradients(checks: dict[str, Any]) -> None:
    assert checks["log_probs"]["full"] < 1e-4 and checks["log_probs"]["lora"] < 1e-4


@pytest.mark.covers("pareto-20")
@pytest.mark.covers("pareto-32")
def test_only_model_tokens_affect_the_gradient(checks: dict[str, Any]) -> None:
    found = checks["contract"]
    assert found["num_results"] > 100 and found["gradient_at_results"] == found["gradient_at_padding"] == 0.0
    assert found["least_gradient_at_model_tokens"] > 0.0


@pytest.mark.covers("pareto-32")
@pytest.mark.covers("pareto-33")
def test_trl_keeps_the_trajectories_masks_and_advantages_of_the_scenario(checks: dict[str, Any]) -> None:
    found, expected = checks["contract"], json.loads(GOLDEN.read_text())
    prompts = found["prompts"]
    assert len(set(prompts)) == 3 and all(len(set(prompts[at : at + 8])) == 1 for at in (0, 8, 16))
    assert found["dumped"] == 24
    assert all("other rollouts than the plan has in step 1" in refusal for refusal in found["refused"])
    for mine, group in zip(found["groups"], expected, strict=True):
        for one, item in zip(mine, group["items"], strict=True):
            assert one["prompt"] == group["prompt"] and one["completion"] == item["completion"]
            assert one["mask"] == item["mask"]
        rewards = [item["reward"] for item in group["items"]]
        advantages = [one["advantage"] for one in mine]
        assert advantages == pytest.approx(group_advantages(rewards), abs=2e-6)
    # Of float32, and written with six digits.
    rewards = [item["reward"] for group in expected for item in group["items"]]
    assert found["rewards"] == pytest.approx(rewards, abs=1e-6)


def test_advantages_of_turns_reach_the_loss(checks: dict[str, Any]) -> None:
    *updates, tracked = checks["credit"]
    assert len(updates) == 3 and max(update["most_turns"] for update in updates) > 1
    for update in updates:
        assert update["agrees"] and update["loss"] == pytest.approx(update["token_mean"], rel=1e-5)
    assert {"parts/f_tool", "parts/format_ok"} <= set(tracked["logged"])


@pytest.mark.covers("service-28")
def test_attributed_advantages_reach_the_loss_as_they_are(checks: dict[str, Any]) -> None:
    decoupled, allocated, unlabelled = checks["attributed"]
    for made, expected in ((decoupled, DECOUPLED), (allocated, ALLOCATED)):
        assert [[round(value, 4) for value in own] for own in made["turns"]] == expected, (
            "nothing normalises them again"
        )
        assert made["loss"] == pytest.approx(made["by_hand"], rel=1e-5) and made["num_requests"] == 4
    outcomes = group_advantages(REWARDS)
    assert unlabelled["turns"] == [
        pytest.approx([value] * len(flags)) for value, flags in zip(outcomes, FLAGS, strict=True)
    ]
    assert unlabelled["num_requests"] == 0, "labels are bought in no step from prm_steps on"


def test_samples_of_a_trajectory_have_the_gradient_of_the_whole_in_batches_filled_with_weight_zero(
    checks: dict[str, Any],
) -> None:
    for made in checks["several"].values():
        whole, split = made["rows"]
        assert split > whole == 24 and split % 6 == 0
        assert made["fillers"][0] == 0 < made["fillers"][1]
        assert made["error"] < 1e-5
        assert made["rewards"][1] == pytest.approx(made["rewards"][0]), "each rollout counts once"


def test_adapters_are_trained_and_merged(checks: dict[str, Any], policy: Path) -> None:
    folder: RlFolder = checks["folder"]
    assert "adapter_model.safetensors" in checks["lora"]["state"]
    events = {event["event"]: event for event in map(orjson.loads, folder.events.read_bytes().splitlines())}
    assert 0 < events["begin"]["num_trained_parameters"] < 60_000
    # A step of two updates is reported once, under its own number.
    assert (events["begin"]["num_steps"], events["step"]["step"], events["saved"]["state"]) == (1, 1, "checkpoint-2")
    assert events["step"]["grad_norm"] > 0.0
    assert events["greedy"]["ids"] == events["live_greedy"]["ids"]
    assert (folder.model / "model.safetensors").stat().st_size == (policy / "model.safetensors").stat().st_size


@pytest.mark.covers("pareto-32")
def test_rejects_a_plan_that_splits_groups_before_training(folder: RlFolder, policy: Path) -> None:
    plan = trl_jobs.make_plan(per_device_batch_size=3)
    with pytest.raises(ConfigError, match=r"trl refuses .*per_device_batch_size"):
        reinforce(folder, plan, job_of(policy), EngineOptions(variant="cpu"))
    assert not folder.output.exists()


def text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
