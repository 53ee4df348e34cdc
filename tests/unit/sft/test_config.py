"""Settings of fine-tuning, and the resulting settings of LLaMA-Factory, DeepSpeed and torchrun."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from treadle.core.config import load_config
from treadle.core.engines.config import Machine
from treadle.core.errors import ConfigError
from treadle.sft.config import ET_AGENT_7B, SftOptions
from treadle.sft.llamafactory import REFUSED_KEYS, TYPED_KEYS
from treadle.sft.llamafactory_config import (
    commands_of_nodes,
    deepspeed_config,
    plan_training,
    torchrun_arguments,
)
from treadle.sft.training_plan import Paths
from treadle.tasks.config import TreadleConfig

GOLDEN = Path(__file__).parents[1] / "golden"
PATHS = Paths(
    model="/models/base",
    rows=Path("/training/rows"),
    output=Path("/training/model"),
    deepspeed=Path("/training/z3.json"),
)
CPU, FOUR_GPUS = Machine(variant="cpu"), Machine(variant="cuda", num_devices=4)
ET_AGENT = SftOptions(preset="et-agent-7b")

PAPER: dict[str, Any] = {
    "stage": "sft",
    "finetuning_type": "full",
    "template": "qwen",
    "cutoff_len": 10_000,
    "learning_rate": 5e-6,
    "lr_scheduler_type": "cosine",
    "warmup_ratio": 0.1,
    "num_train_epochs": 3.0,
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 8,
    "overwrite_output_dir": True,
    "bf16": True,
    "logging_steps": 10,
    "save_steps": 107,
    "plot_loss": True,
    "report_to": "none",
    "enable_liger_kernel": True,
    "use_unsloth_gc": True,
    "ddp_timeout": 180_000_000,
    "deepspeed": "/training/z3.json",
    "flash_attn": "auto",
}
"""The published configuration. `max_samples` is ours to keep to; `preprocessing_num_workers` and `overwrite_cache`
speak of tokenising, which has been done."""


def told(options: SftOptions, machine: Machine = CPU, longest_row: int = 200) -> dict[str, Any]:
    return plan_training(options, PATHS, machine, longest_row=longest_row, seed=7).arguments


@pytest.mark.parametrize(
    ("name", "options", "machine", "longest_row"),
    [
        ("sft-et-agent-7b.yaml", ET_AGENT, FOUR_GPUS, 9_000),
        ("sft-default-cpu.yaml", SftOptions(), CPU, 200),
        (
            "sft-lora-cuda.yaml",
            SftOptions(finetuning_type="lora", lora_rank=16, trackers=("wandb",), extra={"optim": "adamw_torch_fused"}),
            Machine(variant="cuda"),
            3_000,
        ),
    ],
)
def test_llamafactory_file_equals_the_golden_one(
    name: str, options: SftOptions, machine: Machine, longest_row: int
) -> None:
    text = plan_training(options, PATHS, machine, longest_row=longest_row, seed=7).yaml()
    assert text == (GOLDEN / name).read_text()
    assert yaml.safe_load(text) == plan_training(options, PATHS, machine, longest_row=longest_row, seed=7).arguments


@pytest.mark.covers("pareto-12")
def test_preset_has_every_value_of_the_paper() -> None:
    arguments = told(ET_AGENT, FOUR_GPUS, 9_000)
    assert {key: arguments[key] for key in PAPER} == PAPER
    assert not {"max_samples", "preprocessing_num_workers", "overwrite_cache"} & arguments.keys()
    assert ET_AGENT.model == "Qwen/Qwen2.5-7B-Instruct"
    assert (ET_AGENT.batch_size, ET_AGENT.max_rows) == (32, 1_000_000)


def test_shipped_config_spells_out_the_preset() -> None:
    path = Path(__file__).parents[3] / "configs" / "et-agent-7b.toml"
    assert set(tomllib.loads(path.read_text())["sft"]) == {*ET_AGENT_7B, "preset"}
    assert load_config(TreadleConfig, (path,)).sft == ET_AGENT


def test_explicit_keys_override_a_preset() -> None:
    config = load_config(TreadleConfig, data={"sft": {"preset": "et-agent-7b", "learning_rate": 1e-5}})
    assert (config.sft.learning_rate, config.sft.batch_size) == (1e-5, 32)
    with pytest.raises(ConfigError, match="known presets: et-agent-7b"):
        load_config(TreadleConfig, data={"sft": {"preset": "et-agent"}})


def test_rows_are_pretokenized_and_a_missing_folder_loads_no_other_dataset() -> None:
    arguments = told(SftOptions())
    assert arguments["tokenized_path"] == "/training/rows"
    assert arguments["dataset"] == "none-only-tokenized-path"
    assert "dataset_dir" not in arguments


@pytest.mark.parametrize("key", [*REFUSED_KEYS, *TYPED_KEYS])
def test_extra_key_that_breaks_a_guarantee_is_refused_with_the_reason(key: str) -> None:
    reason = f"write it as `sft.{TYPED_KEYS[key]}`" if key in TYPED_KEYS else REFUSED_KEYS[key]
    with pytest.raises(ConfigError) as caught:
        load_config(TreadleConfig, data={"sft": {"extra": {key: 1}}})
    assert f"{key!r} is not passed through: {reason}" in str(caught.value)
    assert all(hasattr(SftOptions(), ours) for ours in TYPED_KEYS.values())


def test_extra_cannot_override_a_written_key() -> None:
    lora = SftOptions(finetuning_type="lora", template="qwen", revision="main")
    written = {*told(lora), *told(ET_AGENT, FOUR_GPUS)}
    free = {key for key in written if key not in {*REFUSED_KEYS, *TYPED_KEYS, *SftOptions.model_fields}}
    assert free == {"save_total_limit"}


def test_any_other_key_is_passed_through_unchanged() -> None:
    extra = {"neftune_noise_alpha": 5, "lr_scheduler_kwargs": {"num_cycles": 2}, "optim": "adafactor"}
    assert extra.items() <= told(SftOptions(extra=extra)).items()


def test_text_containing_yaml_stays_text() -> None:
    hostile = "a: b\n- c # \u2028 \x85 no\nstage: pt"
    plan = plan_training(SftOptions(extra={"run_name": hostile}), PATHS, CPU, longest_row=1, seed=0)
    assert yaml.safe_load(plan.yaml()) == plan.arguments


def test_cpu_training_uses_fp32_and_reports_what_it_omits() -> None:
    plan = plan_training(SftOptions(preset="et-agent-7b", precision="auto"), PATHS, CPU, longest_row=200, seed=0)
    assert plan.arguments["use_cpu"] and not plan.arguments["bf16"] and not plan.arguments["fp16"]
    assert not {"deepspeed", "enable_liger_kernel", "use_unsloth_gc"} & plan.arguments.keys()
    assert [note.split()[0] for note in plan.notes] == [
        "sft.liger_kernel", "sft.unsloth_gradient_checkpointing", "sft.deepspeed",
    ]  # fmt: skip
    assert all(f"# {note}\n" in plan.yaml() for note in plan.notes)
    assert not plan_training(SftOptions(), PATHS, CPU, longest_row=200, seed=0).notes


@pytest.mark.parametrize(
    ("keys", "machine", "message"),
    [
        ({"precision": "fp16"}, CPU, "fp16 cannot be trained on a CPU"),
        ({}, Machine(variant="cpu", num_nodes=2), "one process on one machine"),
        ({"batch_size": 6}, FOUR_GPUS, "batch_size 6 cannot be spread over 4 devices"),
        ({"batch_size": 12, "per_device_batch_size": 2}, FOUR_GPUS, "is 3 rows each, not a multiple"),
    ],
)
def test_unsupported_hardware_settings_are_refused(keys: dict[str, Any], machine: Machine, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        told(SftOptions(**keys), machine)


@pytest.mark.parametrize(
    ("machine", "longest_row", "expected"),
    [
        (CPU, 200, (32, 1)),
        (CPU, 1_000, (8, 4)),
        (CPU, 50_000, (1, 32)),
        (FOUR_GPUS, 1_000, (8, 1)),
        (Machine(variant="cuda", num_devices=8, num_nodes=2), 3_000, (2, 1)),
    ],
)
def test_update_batch_does_not_depend_on_the_devices(
    machine: Machine, longest_row: int, expected: tuple[int, int]
) -> None:
    arguments = told(SftOptions(batch_size=32), machine, longest_row)
    found = arguments["per_device_train_batch_size"], arguments["gradient_accumulation_steps"]
    assert found == expected
    assert found[0] * found[1] * machine.num_processes == 32


def test_zero3_gathers_on_save_and_offloads_nothing() -> None:
    zero = json.loads(deepspeed_config())["zero_optimization"]
    assert (zero["stage"], zero["stage3_gather_16bit_weights_on_model_save"]) == (3, True)
    assert not [key for key in zero if key.startswith("offload")]
    assert plan_training(ET_AGENT, PATHS, Machine(variant="cuda"), longest_row=9, seed=0).torchrun
    assert not plan_training(SftOptions(), PATHS, Machine(variant="cuda"), longest_row=9, seed=0).torchrun


def test_several_nodes_get_rendezvous_addresses() -> None:
    with pytest.raises(ConfigError, match="several nodes need `main_address`"):
        load_config(TreadleConfig, data={"sft": {"num_nodes": 2}})
    options = SftOptions(num_nodes=2, main_address="node-0", main_port=29501, ddp_timeout_s=3600)
    machine = Machine(variant="cuda", num_devices=8, num_nodes=2)
    start = ["python", "-m", "torch.distributed.run", *torchrun_arguments(options, machine), "/training/a b/train.json"]
    assert commands_of_nodes(start, {"PYTHONPATH": "/code"}, 2) == [
        "PYTHONPATH=/code python -m torch.distributed.run --nnodes=2 --node_rank=1 --nproc_per_node=8 "
        "--master_addr=node-0 --master_port=29501 --rdzv_conf=timeout=3600 '/training/a b/train.json'"
    ]


def test_single_node_uses_loopback() -> None:
    arguments = torchrun_arguments(SftOptions(), Machine(variant="cuda", num_devices=8))
    assert "--master_addr=127.0.0.1" in arguments and "--nnodes=1" in arguments


def test_address_cannot_contain_a_command() -> None:
    with pytest.raises(ConfigError, match="main_address"):
        load_config(TreadleConfig, data={"sft": {"num_nodes": 2, "main_address": "x; rm -rf"}})
