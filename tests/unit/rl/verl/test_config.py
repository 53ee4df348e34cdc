"""verl's overrides, derived from plans; tests/e2e/test_verl.py checks them with verl itself."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import orjson
import pytest
from support.training.verl_plans import FOUR_GPUS, ROOT
from support.training.verl_plans import verl_files as files
from support.training.verl_plans import verl_plan as plan

from treadle.core.engines.config import Machine
from treadle.core.errors import ConfigError
from treadle.rl.engine.verl.commands import cluster_script
from treadle.rl.engine.verl.folder import merge_command
from treadle.rl.verl.config import hydra_value, loop_yaml, override_lines, verl_overrides

GOLDEN = Path(__file__).parents[2] / "golden"
FORK_ONLY = ("initial_rollouts", "beam_size", "branch_probability", "entropy_weight", "sync_with_tool", "tools.")
"""Keys that only the fork behind arXiv 2601.06860 knew."""


def told(machine: Machine = FOUR_GPUS, **keys: Any) -> dict[str, Any]:
    return verl_overrides(plan(machine, **keys), files())


GOLDEN_PLANS = {
    "verl-et-agent-7b.json": (plan(preset="et-agent-7b"), None),
    "verl-lora-two-nodes.json": (
        plan(
            Machine(variant="cuda", num_devices=8, num_nodes=2),
            num_validation_rows=0,
            finetuning_type="lora",
            lora_target="q_proj, v_proj",
            dual_clip=None,
            kl_coef=0.001,
            loss_agg="sequence_mean",
            lr_scheduler_type="cosine",
            tensor_parallel=2,
            trackers=["wandb"],
            extra={"actor_rollout_ref.actor.strategy": "fsdp", "+trainer.note": "it's 1"},
        ),
        "global_step_30",
    ),
}


@pytest.mark.covers("pareto-30")
@pytest.mark.parametrize("name", sorted(GOLDEN_PLANS))
def test_verl_overrides_equal_the_golden_ones(name: str) -> None:
    phase, resume = GOLDEN_PLANS[name]
    lines = override_lines(verl_overrides(phase, files(resume)))
    assert lines == orjson.loads((GOLDEN / name).read_bytes())


@pytest.mark.covers("pareto-30")
def test_fork_only_keys_are_never_written() -> None:
    for phase, resume in GOLDEN_PLANS.values():
        overrides = verl_overrides(phase, files(resume))
        assert not [key for key in overrides if any(word in key for word in FORK_ONLY)]
        assert overrides["actor_rollout_ref.rollout.mode"] == "async"


@pytest.mark.covers("pareto-29")
def test_published_plan_has_the_published_numbers() -> None:
    phase = plan(preset="et-agent-7b")
    assert (phase.steps_per_epoch, phase.num_steps, phase.updates_per_step) == (125, 375, 16)
    overrides = verl_overrides(phase, files())
    published = {
        "data.train_batch_size": 64,
        "data.max_prompt_length": 2000,
        "data.max_response_length": 4096,
        "actor_rollout_ref.rollout.n": 16,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 4,
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 12_192,
        "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu": 24_384,
        "actor_rollout_ref.actor.optim.lr": 1e-6,
        "actor_rollout_ref.actor.use_kl_loss": False,
        "trainer.save_freq": 30,
        "trainer.test_freq": 10,
        "trainer.total_epochs": 3,
        "trainer.total_training_steps": 375,
    }
    assert {key: overrides[key] for key in published} == published


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"lr_scheduler_type": "linear"}, "constant and cosine"),
        ({"finetuning_type": "lora", "lora_dropout": 0.1}, "no dropout"),
        ({"precision": "fp32"}, "16 bits"),
        ({"tensor_parallel": 3}, "does not divide 4 GPUs"),
        ({"prompts_per_step": 1, "mini_batch_prompts": 1, "group_size": 2}, "evenly over 4 GPUs"),
        ({"extra": {"trainer.save_freq": 7}}, "trainer.save_freq is set by other keys"),
        ({"extra": {"+trainer.save_freq": 7}}, "cannot be replaced"),
        ({"extra": {"trainer": {"save_freq": 7}}}, "with one value"),
        ({"extra": {"trainer": None}}, "cannot be replaced"),
        ({"extra": {"trainer.save_freq.x": 1}}, "cannot be replaced"),
        ({"extra": {"x=1 y": 2}}, "must be one key"),
        ({"extra": {"hydra.run.dir": "/x"}}, "not passed through"),
        ({"extra": {"actor_rollout_ref.model.trust_remote_code": True}}, "never run"),
        ({"extra": {"+data.custom_cls.path": "/evil.py"}}, "never run"),
        ({"extra": {"actor_rollout_ref.model.external_lib": "evil"}}, "never run"),
    ],
)
def test_unsupported_verl_settings_are_refused(keys: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        told(**keys)


def test_dynamic_sampling_is_verls_filter_of_groups() -> None:
    overrides = told(dynamic_sampling=True, gen_prompts=6, max_extra_batches=10)
    assert {key: value for key, value in overrides.items() if "filter_groups" in key} == {
        "algorithm.filter_groups.enable": True,
        "algorithm.filter_groups.metric": "reward",
        "algorithm.filter_groups.max_num_gen_batches": 11,
        "algorithm.filter_groups.max_inflight_gen_batches": 2,
    }
    assert not [key for key in told(gen_prompts=6) if "filter_groups" in key]
    with pytest.raises(ConfigError, match=r"algorithm\.filter_groups\.metric is set by other keys"):
        told(dynamic_sampling=True, extra={"algorithm.filter_groups.metric": "acc"})


def test_machine_without_gpus_is_refused() -> None:
    with pytest.raises(ConfigError, match="NVIDIA GPUs only"):
        told(Machine(variant="cpu"))


def test_extra_replaces_only_keys_without_an_option() -> None:
    overrides = told(extra={"actor_rollout_ref.rollout.agent.num_workers": 2, "+trainer.note": "x"})
    assert overrides["actor_rollout_ref.rollout.agent.num_workers"] == 2
    assert overrides["+trainer.note"] == "x"


@pytest.mark.parametrize(
    "key",
    [
        "+actor_rollout_ref.actor._target_",
        "reward.reward_manager.source",
        "reward.reward_manager.module.path",
        "reward_model.reward_manager",
        "reward_model.reward_loop_source",
        "reward_model.reward_loop_module_path",
        "reward_model.reward_loop_class_name",
        "trainer.v1.sampler.custom_sampler.path",
        "trainer.checkpoint_callback_class",
        "actor_rollout_ref.rollout.agent.custom_async_server.path",
        "+actor_rollout_ref.rollout.agent.agent_loop_manager_class",
        "+actor_rollout_ref.rollout.checkpoint_manager_class",
        "actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module",
        "+actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs.nccl.x",
        "+actor_rollout_ref.rollout.engine_kwargs.vllm.worker_extension_cls",
        "actor_rollout_ref.rollout.router_config_path",
        "actor_rollout_ref.rollout.multi_turn.tool_config_path",
        "data.function_tool_path",
        "+distillation.teacher_models.a.inference.agent.agent_loop_config_path",
        "actor_rollout_ref.actor.optim.optimizer_impl",
        "critic.optim.optimizer_impl",
        "critic.model.external_lib",
        "+ray_kwargs.ray_init.runtime_env.working_dir",
        "ray_kwargs.ray_init.runtime_env.py_executable",
        "+ray_kwargs.ray_init.runtime_env.env_vars.PYTHONPATH",
        "global_profiler.finish_hook_cmd",
        "+global_profiler.global_tool_config.nsys.worker_nsight_options.x",
        "trainer.default_hdfs_dir",
        "skip.rollout.dump_dir",
        "hydra",
    ],
)
def test_settings_that_execute_foreign_code_are_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="external code is never run"):
        told(extra={key: "evil"})


@pytest.mark.parametrize("key", ["data.train_max_samples", "data.val_max_samples"])
def test_rows_of_the_plan_cannot_be_limited(key: str) -> None:
    with pytest.raises(ConfigError, match="rows that the plan counts"):
        told(extra={key: 10})


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("+actor_rollout_ref.model.override_config.attn_implementation", "evil/kernel", "never run"),
        ("actor_rollout_ref.model.tokenizer_path", "hdfs://x; evil", "never run"),
        ("+trainer.notes", ["hdfs://x; evil"], "never run"),
        ("+trainer.notes", [{"_target_": "evil"}], "with one value"),
    ],
)
def test_values_that_load_code_are_refused(key: str, value: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        told(extra={key: value})


def test_installed_attention_may_be_chosen() -> None:
    key = "+actor_rollout_ref.model.override_config.attn_implementation"
    assert told(extra={key: "flash_attention_2"})[key] == "flash_attention_2"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, "null"),
        (True, "true"),
        (1e-6, "1e-06"),
        (-1, "-1"),
        ("vllm", "vllm"),
        ("/a/b-c.json", "/a/b-c.json"),
        ("null", "'null'"),
        ("12", "'12'"),
        ("a b", "'a b'"),
        ("it's", "'it\\'s'"),
        ("\\'", "'\\\\\\''"),
        ("end\\", "'end\\\\'"),
        ("${oc.env:HOME}", "'\\${oc.env:HOME}'"),
        (["model", 1], "[model,1]"),
        ({"a": [1]}, "{a:[1]}"),
    ],
)
def test_values_are_written_in_hydra_grammar(value: Any, written: str) -> None:
    assert hydra_value(value) == written


def test_agent_loop_is_found_by_name_and_gets_its_job() -> None:
    (entry,) = orjson.loads(loop_yaml(ROOT / "verl" / "job.json"))
    assert entry == {
        "name": told()["actor_rollout_ref.rollout.agent.default_agent_loop"],
        "_target_": "treadle.rl.engine.verl.loop.TreadleLoop",
        "job": "/training/verl/job.json",
    }


def test_cluster_script_runs_one_command_per_role(tmp_path: Path) -> None:
    spy = tmp_path / "py thon"
    spy.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\necho "$RAY_USAGE_STATS_ENABLED ray=${RAY_ADDRESS:-none}"\n')
    spy.chmod(0o755)
    phase = plan(Machine(variant="cuda", num_devices=8, num_nodes=2))
    overrides = override_lines(verl_overrides(phase, files()))
    script = tmp_path / "cluster.sh"
    script.write_text(cluster_script(phase, str(spy), overrides))

    def run(role: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", str(script), role],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": "/code", **environ},
            capture_output=True,
            text=True,
            check=False,
        )

    assert run("head").stdout.splitlines()[2:5] == ["start", "--head", "--port=6379"]
    assert "--address=10.0.0.1:6379" in run("worker", HEAD="10.0.0.1").stdout.splitlines()
    trained = run("train", HEAD="10.0.0.1").stdout.splitlines()
    assert trained[:2] == ["-m", "verl.trainer.main_ppo"] and trained[-1] == "0 ray=10.0.0.1:6379"
    assert trained[2:-1] == overrides
    assert run("train").returncode != 0 and run("dance").stdout == ""


def test_merge_command_names_the_shards_of_the_state() -> None:
    command = shlex.join(merge_command("python", ROOT / "output" / "global_step_30", ROOT / "model"))
    assert command == (
        "python -m verl.model_merger merge --backend fsdp --use_cpu_initialization "
        "--local_dir /training/output/global_step_30/actor --target_dir /training/model"
    )
