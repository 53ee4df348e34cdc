"""Arguments of the trainer: presets against golden files, batches over devices, keys that are not passed on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from treadle.core.engines.config import Machine
from treadle.core.errors import ConfigError
from treadle.rl.dpo.arguments import dpo_arguments, lora_arguments, num_steps_of
from treadle.rl.dpo.config import DpoOptions

GOLDEN = Path(__file__).parents[2] / "golden"


def arguments(options: DpoOptions, machine: Machine | None = None, num_rows: int = 1000) -> dict[str, Any]:
    return dpo_arguments(
        options, machine or Machine(), num_rows=num_rows, has_holdout=True, longest_row=400, output="output", seed=7
    )


@pytest.mark.covers("sweet-30")
@pytest.mark.parametrize("preset", ["sweet-llama-8b", "sweet-llama-8b-critic"])
def test_arguments_of_presets_match_their_golden_files(preset: str) -> None:
    machine = Machine(variant="cuda", num_devices=8)
    found = arguments(DpoOptions(preset=preset), machine)
    assert found == json.loads((GOLDEN / f"dpo-{preset}.json").read_text())


def test_batches_are_spread_over_devices() -> None:
    options = DpoOptions(aggregate="sum", batch_size=8)
    assert arguments(options)["per_device_train_batch_size"] == 8
    two = arguments(options, Machine(variant="cuda", num_devices=2))
    assert two["per_device_train_batch_size"] * two["gradient_accumulation_steps"] == 4
    with pytest.raises(ConfigError, match=r"dpo\.batch_size 8 cannot be spread over 3 devices"):
        arguments(options, Machine(variant="cuda", num_devices=3))
    with pytest.raises(ConfigError, match="fp16 cannot be trained on a CPU"):
        arguments(DpoOptions(aggregate="sum", precision="fp16"))


def test_micro_batches_fit_the_memory_or_are_as_configured() -> None:
    options = DpoOptions(aggregate="sum", batch_size=8)

    def spread(longest_row: int, **keys: Any) -> tuple[int, int]:
        made = dpo_arguments(
            options.model_copy(update=keys), Machine(), num_rows=100, has_holdout=False, longest_row=longest_row,
            output="output", seed=7,
        )  # fmt: skip
        assert (
            made["eval_strategy"] == "no" and made["per_device_eval_batch_size"] == made["per_device_train_batch_size"]
        )
        return made["per_device_train_batch_size"], made["gradient_accumulation_steps"]

    assert [spread(one) for one in (10, 1024, 1366, 4096, 100_000)] == [(8, 1), (4, 2), (2, 4), (1, 8), (1, 8)]
    assert spread(10, per_device_batch_size=2) == (2, 4)
    with pytest.raises(ConfigError, match="is 8 pairs each, not a multiple of dpo.per_device_batch_size 3"):
        spread(10, per_device_batch_size=3)


def test_precision_and_dropout_are_what_they_are_set_to() -> None:
    assert not arguments(DpoOptions(aggregate="sum"))["bf16"], "most CPUs emulate it"
    assert arguments(DpoOptions(aggregate="sum", precision="bf16"))["bf16"]
    on_gpu = {
        precision: arguments(DpoOptions(aggregate="sum", precision=precision), Machine(variant="cuda"))
        for precision in ("auto", "bf16", "fp16", "fp32")
    }
    assert {name: (one["bf16"], one["fp16"]) for name, one in on_gpu.items()} == {
        "auto": (True, False),
        "bf16": (True, False),
        "fp16": (False, True),
        "fp32": (False, False),
    }
    assert arguments(DpoOptions(aggregate="sum"))["disable_dropout"]
    dropping = DpoOptions(aggregate="sum", finetuning_type="lora", lora_dropout=0.1)
    assert not arguments(dropping)["disable_dropout"]
    with pytest.raises(ConfigError, match="on a CPU training is one process"):
        arguments(DpoOptions(aggregate="sum", batch_size=8), Machine(num_devices=2))


def test_loss_follows_the_aggregate() -> None:
    def losses(**options: Any) -> tuple[list[str], list[float]]:
        made = arguments(DpoOptions(**options))
        return made["loss_type"], made["loss_weights"]

    assert losses(aggregate="token_mean") == (["sigmoid_norm"], [1.0])
    assert losses(aggregate="sum", nll_coef=0.01) == (["sigmoid", "sft"], [1.0, 0.01])
    assert losses(aggregate="turn_sum", nll_coef=0.01) == (["sigmoid"], [1.0]), "the trainer adds it"


def test_steps_count_whole_passes() -> None:
    assert num_steps_of(DpoOptions(batch_size=8, num_train_epochs=2.0), 17) == 6
    assert num_steps_of(DpoOptions(batch_size=8, num_train_epochs=0.1), 1) == 1


def test_adapters_have_twice_their_rank_as_scale() -> None:
    made = lora_arguments(DpoOptions(finetuning_type="lora", lora_rank=4))
    assert made is not None and (made["r"], made["lora_alpha"], made["target_modules"]) == (4, 8, "all-linear")
    assert lora_arguments(DpoOptions()) is None


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("beta", "write it as `dpo.beta`"),
        ("loss_type", "write it as `dpo.aggregate`"),
        ("truncation_mode", "pairs are never truncated"),
        ("hub_token", "secrets are not configuration"),
    ],
)
def test_keys_with_another_place_are_not_passed_on(key: str, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        DpoOptions(extra={key: 1})
