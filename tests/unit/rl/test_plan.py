"""Plans of reinforcement phases: sigmas, counting, what is refused, and the way through JSON."""

from __future__ import annotations

import math
from typing import Any

import orjson
import pytest

from treadle.core.config import load_config
from treadle.core.engines.config import Machine
from treadle.core.errors import ConfigError, EngineError
from treadle.environments.question.settings import QuestionSettings
from treadle.rl.config import RlOptions, RlSettings
from treadle.rl.rewards.efficiency import EfficiencyReward, decay_factor
from treadle.rl.training.plan import ONE_CPU, RlPlan, plan_phase

ET_AGENT: dict[str, Any] = {"preset": "et-agent-7b", "reward": {"sigma_tool": 0.1, "sigma_length": 0.1}}
SMALL = {"reward": {"sigma_tool": 0.1, "sigma_length": 0.05}}


def plan(num_rows: int = 8000, *, machine: Machine = ONE_CPU, num_validation_rows: int = 0, **keys: Any) -> RlPlan:
    settings = RlSettings(options=load_config(RlOptions, data=keys or SMALL), phase=2, phases=3, seed=7)
    return plan_phase(
        settings,
        address="1/rl@phase-2",
        rows_digest="f" * 64,
        rows={"default": num_rows},
        validation_rows={"default": num_validation_rows} if num_validation_rows else {},
        machine=machine,
    )


def sigmas_at(made: RlPlan, step: int) -> tuple[float, float]:
    assert isinstance(made.options.reward, EfficiencyReward)
    return made.options.reward.sigmas_at(step, made.num_steps)


@pytest.mark.covers("pareto-14")
def test_linear_decay_reaches_zero_at_the_last_step() -> None:
    assert [decay_factor("linear", step, 375) for step in (1, 188, 375)] == [1.0, 0.5, 0.0]
    assert decay_factor("linear", 100, 375) == pytest.approx(0.7353, abs=5e-5)
    assert decay_factor("linear", 1, 1) == 0.0
    assert decay_factor("linear", 400, 375) == 0.0
    assert [decay_factor("none", step, 375) for step in (1, 375)] == [1.0, 1.0]
    with pytest.raises(ValueError, match="counted from 1"):
        decay_factor("linear", 0, 375)


@pytest.mark.covers("pareto-14")
def test_both_sigmas_decay_together() -> None:
    keys, sigmas = {"num_rows": 3000, "prompts_per_step": 8}, {"sigma_tool": 0.05, "sigma_length": 0.1}
    linear = plan(**keys, reward={**sigmas, "sigma_decay": "linear"})
    assert linear.num_steps == 375 and sigmas_at(linear, 188) == (0.025, 0.05)
    assert sigmas_at(plan(**keys, reward=sigmas), 188) == (0.05, 0.1)
    equal = {**ET_AGENT["reward"], "sigma_decay": "linear"}
    assert sigmas_at(plan(preset="et-agent-7b", reward=equal), 188) == (0.05, 0.05)
    assert sigmas_at(linear, 0) == (0.0, 0.0)  # A validation.


@pytest.mark.covers("pareto-28")
def test_phase_without_sigmas_is_refused_unless_explicit() -> None:
    with pytest.raises(
        ConfigError, match=r"^1/rl@phase-2: sigma_tool and sigma_length are both 0.*rl.reward.allow_zero_sigmas"
    ):
        plan(reward={"sigma_tool": 0.0, "sigma_length": 0.0})
    explicit = {"sigma_tool": 0.0, "sigma_length": 0.0, "allow_zero_sigmas": True}
    assert sigmas_at(plan(reward=explicit), 1) == (0.0, 0.0)
    assert sigmas_at(plan(reward={"sigma_tool": 0.0, "sigma_length": 0.1}), 1) == (0.0, 0.1)
    assert sigmas_at(plan(reward={"sigma_tool": 0.1, "sigma_length": 0.0}), 1) == (0.1, 0.0)


@pytest.mark.parametrize("sigma", [-0.1, math.nan, math.inf])
def test_sigma_must_not_be_negative(sigma: float) -> None:
    with pytest.raises(ConfigError, match="sigma_tool"):
        load_config(RlOptions, data={"reward": {"sigma_tool": sigma}})


def test_phase_with_undetermined_sigmas_is_not_a_plan() -> None:
    with pytest.raises(ConfigError, match="are not set; set them, or the phase's values in curriculum"):
        plan(reward={"sigma_tool": 0.1})


@pytest.mark.covers("pareto-29")
def test_eight_thousand_rows_are_375_steps_of_16_updates() -> None:
    phase = plan(**ET_AGENT)
    assert (phase.steps_per_epoch, phase.num_steps, phase.updates_per_step) == (125, 375, 16)
    assert phase.trajectories_per_step == 1024
    assert [step for step in range(1, 376) if phase.saves_at(step)] == [*range(30, 375, 30), 375]


def test_steps_are_whole_and_bounded() -> None:
    assert plan(11).num_steps == 2
    assert plan(11, **SMALL, num_epochs=3).num_steps == 6
    assert plan(11, **SMALL, num_epochs=3, max_steps=5).num_steps == 5
    assert plan(11, **SMALL, max_steps=50).num_steps == 2
    with pytest.raises(ConfigError, match="1/rl@phase-2: 3 rows are fewer than rl.prompts_per_step = 4"):
        plan(3)


def test_validation_needs_questions_and_also_follows_the_last_step() -> None:
    phase = plan(100, num_validation_rows=5, **SMALL)
    assert [step for step in range(1, 26) if phase.validates_at(step)] == [10, 20, 25]
    assert not any(plan(100).validates_at(step) for step in range(1, 26))
    with pytest.raises(ConfigError, match="checkpoint_rule .* needs validation"):
        plan(100, **SMALL, checkpoint_rule="best")
    assert plan(100, num_validation_rows=5, **SMALL, checkpoint_rule="best").options.checkpoint_rule == "best"


def test_draws_of_dynamic_sampling_need_rows_and_do_not_change_the_number_of_steps() -> None:
    keys = {**SMALL, "dynamic_sampling": True, "gen_prompts": 40}
    assert plan(100, **keys).num_steps == plan(100, **SMALL).num_steps == 25
    with pytest.raises(ConfigError, match=r"39 rows are fewer than rl\.gen_prompts = 40"):
        plan(39, **keys)


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"group_size": 8, "initial_rollouts": 9}, "initial_rollouts 9 is more than group_size 8"),
        ({"prompts_per_step": 6}, "prompts_per_step 6 is not a multiple of mini_batch_prompts 4"),
        ({"checkpoint_rule": "best", "save_steps": 15}, "save_steps 15 is not a multiple of validation_steps 10"),
        ({"max_response_tokens": 64, "max_new_tokens": 65}, "max_new_tokens 65 of a turn is more than"),
        ({"finetuning_type": "lora", "lora_target": ""}, "names no module between its commas"),
        ({"finetuning_type": "lora", "lora_target": "q_proj, ,v_proj"}, "names no module between its commas"),
        ({"group_size": 1}, "group_size"),
        ({"dynamic_sampling": True, "shares": {"default": 1.0}}, "leave out one of them"),
        (
            {"dynamic_sampling": True, "gen_prompts": 1, "max_extra_batches": 2},
            "allow 3 questions of a step, fewer than prompts_per_step 4",
        ),
        ({"preset": "et-agent"}, "known presets: et-agent-7b"),
        ({"extra": {"beta": 0.1}}, "'beta' is not passed through: write it as `rl.kl_coef`"),
        ({"extra": {"learning_rate": 0.1}}, "'learning_rate' is not passed through: write it as `rl.learning_rate`"),
        ({"extra": {"generation_kwargs": {}}}, "'generation_kwargs' is not passed through: Treadle generates"),
        ({"extra": {"hub_token": "x"}}, "secrets are not configuration"),
        ({"engine": "verl", "extra": {"group_size": 1}}, "write it as `rl.group_size`"),
    ],
)
def test_contradictory_options_are_refused(keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(RlOptions, data=keys)
    assert problem in str(caught.value)


def test_branching_needs_fewer_initial_rollouts_than_the_group_size() -> None:
    assert not RlOptions().branches
    assert RlOptions(initial_rollouts=8).branches
    assert not RlOptions(initial_rollouts=16).branches
    with pytest.raises(ValueError, match="beam_size 1 allows no branches"):
        RlOptions(initial_rollouts=8, beam_size=1)
    assert load_config(RlOptions, data=ET_AGENT).branches


def test_blanks_around_modules_are_ignored() -> None:
    targets = [RlOptions(finetuning_type="lora", lora_target=text).lora_target for text in (" all", "q_proj , v_proj")]
    assert targets == ["all", "q_proj,v_proj"]


def test_plan_names_the_environment_of_its_rollouts() -> None:
    settings = RlSettings(options=RlOptions(**SMALL), environment=QuestionSettings(preset="et-agent-rl"))
    phase = plan_phase(settings, address="1/rl@phase-1", rows_digest="", rows={"default": 8})
    assert phase.environment_digests == {"default": settings.environment.digest()} != plan(8).environment_digests


@pytest.mark.parametrize(
    ("variant", "asked", "used"), [("cpu", "auto", "fp32"), ("cuda", "auto", "bf16"), ("cpu", "bf16", "bf16")]
)
def test_policy_computes_in_fp32_on_a_cpu_unless_configured(variant: str, asked: str, used: str) -> None:
    machine = Machine.model_validate({"variant": variant})
    assert plan(**SMALL, machine=machine, precision=asked).precision == used


def test_plan_round_trips_as_json() -> None:
    phase = plan(**ET_AGENT, extra={"optim": "adafactor"}, machine=Machine(variant="cuda", num_devices=4))
    assert RlPlan.from_json(phase.to_json()) == phase
    assert RlPlan.from_json(orjson.dumps(orjson.loads(phase.to_json()))) == phase


def test_plan_of_another_version_is_refused() -> None:
    data = orjson.loads(plan().to_json())
    with pytest.raises(EngineError, match="not a valid plan of a phase: options.group_size"):
        RlPlan.from_json(orjson.dumps({**data, "options": {**data["options"], "group_size": "many"}}))
    with pytest.raises(EngineError, match="not a valid plan of a phase"):
        RlPlan.from_json("{")
    with pytest.raises(EngineError, match="has version 99"):
        RlPlan.from_json(orjson.dumps({**data, "version": 99}))


def test_preset_has_the_published_values() -> None:
    options = load_config(RlOptions, data=ET_AGENT)
    assert (options.group_size, options.initial_rollouts, options.beam_size) == (16, 8, 2)
    assert (options.branch_probability, options.entropy_weight) == (0.5, 0.2)
    assert (options.prompts_per_step, options.mini_batch_prompts, options.num_epochs) == (64, 4, 3)
    assert (options.learning_rate, options.lr_scheduler_type, options.weight_decay) == (1e-6, "constant", 0.01)
    assert (options.clip_low, options.clip_high, options.dual_clip, options.kl_coef) == (0.2, 0.2, 3.0, 0.0)
    assert (options.max_prompt_tokens, options.max_response_tokens) == (2000, 4096)
    assert (options.validation_questions, options.validation_steps, options.save_steps) == (160, 10, 30)
    assert load_config(RlOptions, data={**ET_AGENT, "learning_rate": 1e-5}).learning_rate == 1e-5
