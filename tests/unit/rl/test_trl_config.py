"""TRL's arguments, derived from plans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from treadle.core.config import load_config
from treadle.core.engines.config import Machine
from treadle.core.errors import ConfigError
from treadle.rl.config import RlOptions, RlSettings
from treadle.rl.curriculum import PhaseRollouts
from treadle.rl.selection.settings import SelectionOptions
from treadle.rl.training.phase_check import check_training
from treadle.rl.training.plan import ONE_CPU, RlPlan, plan_phase
from treadle.rl.trl.config import check_whole_groups, lora_arguments, trl_arguments
from treadle.rl.trl.engine import REFUSED_KEYS, TYPED_KEYS

GOLDEN = Path(__file__).parents[1] / "golden"
FOUR_GPUS = Machine(variant="cuda", num_devices=4)
ET_AGENT = {"preset": "et-agent-7b", "engine": "trl"}


def plan(machine: Machine = ONE_CPU, *, num_rows: int = 8000, num_validation_rows: int = 160, **keys: Any) -> RlPlan:
    options = load_config(RlOptions, data={"reward": {"sigma_tool": 0.1, "sigma_length": 0.1}, **keys})
    return plan_phase(
        RlSettings(options=options, seed=7),
        address="1/rl@phase-1",
        rows_digest="",
        rows={"default": num_rows},
        validation_rows={"default": num_validation_rows} if num_validation_rows else {},
        machine=machine,
    )


def told(machine: Machine = ONE_CPU, **keys: Any) -> dict[str, Any]:
    return trl_arguments(plan(machine, **keys), Path("/training/output"))


@pytest.mark.covers("pareto-29")
@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("trl-et-agent-7b.json", plan(FOUR_GPUS, **ET_AGENT)),
        ("trl-default-cpu.json", plan(num_rows=40, num_validation_rows=0)),
        (
            "trl-lora-cuda.json",
            plan(
                Machine(variant="cuda"),
                finetuning_type="lora",
                lora_rank=16,
                trackers=["wandb"],
                group_size=8,
                top_k=20,
                loss_agg="sequence_mean",
                extra={"optim": "adamw_torch_fused"},
            ),
        ),
    ],
)
def test_trl_arguments_equal_the_golden_ones(name: str, phase: RlPlan) -> None:
    files = {"grpo": trl_arguments(phase, Path("/training/output")), "lora": lora_arguments(phase)}
    assert files == orjson.loads((GOLDEN / name).read_bytes())


@pytest.mark.covers("pareto-29")
def test_steps_become_updates() -> None:
    arguments = told(FOUR_GPUS, **ET_AGENT)
    assert (arguments["save_steps"], arguments["eval_steps"], arguments["max_steps"]) == (480, 160, 375 * 16)


@pytest.mark.covers("pareto-29")
def test_published_batch_is_distributed_as_its_table_says() -> None:
    arguments = told(FOUR_GPUS, **ET_AGENT)
    table = {
        "num_generations": 16,
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 16,
        "steps_per_generation": 256,
        "max_completion_length": 4096,
        "vllm_max_model_length": 6096,
        "epsilon": 0.2,
        "epsilon_high": 0.2,
        "delta": 3.0,
        "loss_type": "dapo",
        "beta": 0.0,
        "scale_rewards": "group",
        "learning_rate": 1e-6,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.01,
        "max_grad_norm": 1.0,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "num_train_epochs": 3,
        "num_generations_eval": 1,
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": 0.5,
    }
    assert {key: arguments[key] for key in table} == table


@pytest.mark.covers("pareto-32")
@pytest.mark.parametrize(
    ("per_device", "steps_per_generation", "group_size", "fits"),
    [(1, 256, 16, True), (1, 16, 16, True), (3, 5, 15, True), (1, 24, 16, False), (4, 2, 16, False), (5, 3, 16, False)],
)
def test_groups_stay_whole_on_each_device(
    per_device: int, steps_per_generation: int, group_size: int, fits: bool
) -> None:
    if fits:
        check_whole_groups(per_device, steps_per_generation, group_size)
        return
    with pytest.raises(ConfigError, match=f"not whole groups of rl.group_size = {group_size}"):
        check_whole_groups(per_device, steps_per_generation, group_size)


@pytest.mark.covers("pareto-32")
@pytest.mark.parametrize(
    ("machine", "keys", "problem"),
    [
        # 12 x 8 trajectories over 8 devices are 12 each: one group and a half.
        (
            Machine(variant="cuda", num_devices=8),
            {"prompts_per_step": 12, "mini_batch_prompts": 12, "group_size": 8},
            "not whole groups of rl.group_size = 8",
        ),
        (Machine(variant="cuda", num_devices=3), {}, "cannot be spread over 3 devices"),
        (ONE_CPU, {"per_device_batch_size": 7}, "not a multiple of rl.per_device_batch_size = 7"),
        (ONE_CPU, {"precision": "fp16"}, "fp16 cannot be trained on a CPU"),
        (Machine(num_devices=2), {"per_device_batch_size": 1}, "one process"),
        (Machine(variant="cuda", num_nodes=2), {}, 'rl.engine = "verl"'),
        (FOUR_GPUS, {"tensor_parallel": 2}, "set rl.tensor_parallel = 1"),
        (ONE_CPU, {"tensor_parallel": 2}, "set rl.tensor_parallel = 1"),
    ],
)
def test_unsupported_plan_is_refused_before_anything_starts(
    machine: Machine, keys: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        told(machine, **keys)
    assert problem in str(caught.value)


@pytest.mark.parametrize("variant", ["auto", "cpu", "cuda"])
def test_tensor_parallel_rollouts_are_refused_with_trl_before_sampling(variant: str) -> None:
    for number in (1, 2):
        options = load_config(RlOptions, data={"engine": "trl", "variant": variant, "tensor_parallel": number})
        rollouts = PhaseRollouts(samples_per_question=8)
        if number == 1:
            check_training(options, SelectionOptions(), rollouts, "1/rl@phase-1")
            continue
        with pytest.raises(ConfigError, match=r"^1/rl@phase-1: rl: with TRL each .* set rl.tensor_parallel = 1"):
            check_training(options, SelectionOptions(), rollouts, "1/rl@phase-1")


def test_every_distribution_has_whole_groups_and_the_whole_batch() -> None:
    for devices in (1, 2, 4, 8):
        for prompts, mini, size in ((8, 8, 8), (16, 8, 4), (64, 4, 16), (24, 8, 6)):
            arguments = told(
                Machine(variant="cuda", num_devices=devices),
                prompts_per_step=prompts,
                mini_batch_prompts=mini,
                group_size=size,
            )
            micro = arguments["per_device_train_batch_size"]
            assert micro * arguments["steps_per_generation"] * devices == prompts * size
            assert micro * arguments["gradient_accumulation_steps"] * devices == mini * size
            assert micro * arguments["steps_per_generation"] % size == 0


def test_default_micro_batches_contain_as_many_long_sequences_as_fit() -> None:
    gpu = Machine(variant="cuda")
    assert told(gpu)["per_device_train_batch_size"] == 4
    assert told(gpu, max_prompt_tokens=2000, max_response_tokens=4096)["per_device_train_batch_size"] == 1
    assert told(gpu, max_prompt_tokens=100, max_response_tokens=28)["per_device_train_batch_size"] == 64
    assert told(gpu, max_response_tokens=100_000)["per_device_train_batch_size"] == 1


def test_cpu_training_uses_whole_groups() -> None:
    assert told()["per_device_train_batch_size"] == 16
    assert told(max_prompt_tokens=512, max_response_tokens=160)["per_device_train_batch_size"] == 32
    assert told(max_prompt_tokens=100, max_response_tokens=28)["per_device_train_batch_size"] == 64
    assert told(max_response_tokens=100_000)["per_device_train_batch_size"] == 16
    assert told(per_device_batch_size=2)["per_device_train_batch_size"] == 2


def test_process_group_timeout_equals_the_silence_limit_of_a_training() -> None:
    assert told(FOUR_GPUS, **ET_AGENT, stall_timeout_s=7200.5)["ddp_timeout"] == 7201


def test_adapters_are_distinguished_from_full_weights() -> None:
    assert lora_arguments(plan()) is None
    told_lora = lora_arguments(plan(finetuning_type="lora", lora_target="q_proj, v_proj", lora_alpha=4))
    assert told_lora is not None
    assert (told_lora["target_modules"], told_lora["r"], told_lora["lora_alpha"]) == (["q_proj", "v_proj"], 8, 4)
    with_dropout = {"finetuning_type": "lora", "lora_dropout": 0.1}
    assert told()["disable_dropout"] and not told(**with_dropout)["disable_dropout"]


@pytest.mark.parametrize("key", [*REFUSED_KEYS, *TYPED_KEYS])
def test_trl_key_that_breaks_a_guarantee_is_refused_with_the_reason(key: str) -> None:
    reason = f"write it as `rl.{TYPED_KEYS[key]}`" if key in TYPED_KEYS else REFUSED_KEYS[key]
    with pytest.raises(ConfigError) as caught:
        load_config(RlOptions, data={"extra": {key: 1}})
    assert reason in str(caught.value)
    assert TYPED_KEYS.get(key, "group_size") in RlOptions.model_fields


def test_other_keys_are_passed_through() -> None:
    assert told(extra={"optim": "adafactor", "vllm_importance_sampling_correction": False})["optim"] == "adafactor"
    load_config(RlOptions, data={"engine": "verl", "extra": {"optim": "adafactor"}})


def test_every_argument_is_named_or_refused_in_extra() -> None:
    """`extra` cannot override what Treadle decides."""
    decided = {*told(FOUR_GPUS, **ET_AGENT), *told()}
    assert decided <= {*TYPED_KEYS, *REFUSED_KEYS, *RlOptions.model_fields}
