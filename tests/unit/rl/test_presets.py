"""The published settings of GAP, AFM and AgentEvolver, for both trainings and both engines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support.training.verl_plans import LABELLED, preset_plan, verl_files

from treadle.core.config import load_config
from treadle.core.engines.config import Machine
from treadle.core.errors import ConfigError
from treadle.rl.config import RlOptions
from treadle.rl.credit.attribution import AttributionCredit
from treadle.rl.credit.outcome import OutcomeCredit
from treadle.rl.presets import PLANNING_PRESETS
from treadle.rl.trl.config import trl_arguments
from treadle.rl.verl.config import verl_overrides
from treadle.sft.config import SftOptions
from treadle.sft.presets import PLANNING_PRESETS as SFT_PRESETS

ROOT = Path(__file__).parents[3]
NAMES = sorted(PLANNING_PRESETS)
WITH_CRITIC = {"afm-mhqa-7b", "afm-mhqa-32b"}


def test_both_trainings_have_the_same_presets_and_each_has_a_configuration() -> None:
    assert sorted(SFT_PRESETS) == NAMES
    assert [name for name in NAMES if not (ROOT / "configs" / f"{name}.toml").is_file()] == []


@pytest.mark.parametrize("path", ["rl/presets.py", "sft/presets.py"])
def test_every_value_cites_its_source(path: str) -> None:
    lines = (ROOT / path).read_text().splitlines()
    values = [line for line in lines if re.match(r'    "[a-z_]+": ', line)]
    before = {line: lines[at - 1] for at, line in enumerate(lines)}
    cited = re.compile(r"# (paper|script|default|here)\b")
    assert len(values) > 30
    assert [line for line in values if not cited.search(line) and not cited.search(before[line])] == []


@pytest.mark.parametrize(
    ("name", "steps", "step", "draw", "updates", "group", "clip", "lengths"),
    [
        ("gap-3b", 200, 32, 64, 1, 8, (0.2, 0.28, 10), (2048, 8192)),
        ("afm-mhqa-7b", 1005, 512, 512, 2, 1, (0.2, 0.2, 3), (2048, 8192)),
        ("afm-web-32b", 60, 64, 128, 1, 8, (0.2, 0.28, 10), (2048, 30_720)),
        ("afm-code-32b", 120, 256, 256, 8, 8, (0.2, 0.28, 3), (4096, 16_384)),
        ("afm-code-7b", 150, 256, 256, 8, 8, (0.2, 0.28, 3), (4096, 32_768)),
    ],
)
def test_presets_have_the_published_numbers(
    name: str, steps: int, step: int, draw: int, updates: int, group: int, clip: Any, lengths: Any
) -> None:
    plan = preset_plan(name)
    options = plan.options
    assert (plan.num_steps, plan.updates_per_step) == (steps, updates)
    assert (options.prompts_per_step, options.prompts_per_draw, options.group_size) == (step, draw, group)
    assert (options.clip_low, options.clip_high, options.dual_clip) == clip
    assert (options.max_prompt_tokens, options.max_response_tokens) == lengths
    assert options.loss_agg == "token_mean"


@pytest.mark.parametrize("name", NAMES)
def test_verl_gets_dynamic_sampling_or_a_critic(name: str) -> None:
    overrides = verl_overrides(preset_plan(name), verl_files())
    has_critic = name in WITH_CRITIC
    assert overrides["algorithm.adv_estimator"] == ("gae" if has_critic else "grpo")
    assert ("critic.optim.lr" in overrides) is has_critic
    assert overrides.get("algorithm.filter_groups.enable", False) is not has_critic
    assert overrides["actor_rollout_ref.actor.optim.lr_warmup_steps"] == preset_plan(name).options.warmup_steps


@pytest.mark.parametrize(("name", "alpha"), [("agentevolver-7b", 0.2), ("agentevolver-14b", 0.1)])
def test_agentevolver_has_the_published_numbers(name: str, alpha: float) -> None:
    plan = preset_plan(name, **LABELLED)
    options, credit = plan.options, plan.options.credit
    assert (options.prompts_per_step, options.group_size, plan.updates_per_step) == (32, 8, 4)
    assert (options.clip_low, options.clip_high, options.dual_clip, options.kl_coef) == (0.2, 0.28, 3.0, 0.001)
    assert (options.max_prompt_tokens, options.max_response_tokens, options.max_new_tokens) == (4000, 21_580, 4096)
    assert isinstance(credit, AttributionCredit) and credit.model is not None
    assert (credit.alpha, credit.fix_base, credit.scheme, credit.outcome_on) == (alpha, 0.2, "decouple", "last_step")
    assert (credit.prm_steps, credit.skip, credit.weighting) == (100, "none", "trajectories")
    overrides = verl_overrides(plan, verl_files())
    assert overrides["algorithm.adv_estimator"] == "treadle_turns"
    with pytest.raises(ConfigError, match=r"rl\.credit has no model that labels"):
        preset_plan(name)


def test_agentevolver_shows_experience_with_trl() -> None:
    experience = {"rollout_mode": "mixed"}
    options = preset_plan("agentevolver-7b", engine="trl", experience=experience, **LABELLED).options
    use = options.experience
    assert (use.rollout_ratio, use.keep_ratio, use.top_k, use.off_clip_high) == (0.5, 0.0, 3, 0.6)
    assert (use.initial, use.update_steps) == (True, 0)
    with pytest.raises(ConfigError, match="engine verl has one clipping range"):
        preset_plan("agentevolver-7b", experience=experience, **LABELLED)


def test_dynamic_sampling_of_verl_compares_rewards_and_not_credit() -> None:
    labelled = {"credit": {"type": "attribution", **LABELLED["credit"]}}
    for keys, metric in (({}, "reward"), (labelled, "outcome_reward")):
        overrides = verl_overrides(preset_plan("gap-3b", **keys), verl_files())
        assert overrides["algorithm.filter_groups.metric"] == metric


def test_critic_is_verls_alone() -> None:
    with pytest.raises(ConfigError, match="group_size 1 leaves nothing to compare a trajectory with"):
        load_config(RlOptions, data={"preset": "afm-mhqa-7b", "engine": "trl"})


def test_trl_warms_up_over_the_updates_of_the_steps() -> None:
    options = load_config(
        RlOptions,
        data={"preset": "afm-code-7b", "engine": "trl", "reward": "outcome", "num_nodes": 1, "tensor_parallel": 1},
    )
    plan = preset_plan("afm-code-7b").model_copy(
        update={"options": options, "machine": Machine(variant="cuda", num_devices=8)}
    )
    arguments = trl_arguments(plan, Path("/training"))
    assert (arguments["lr_scheduler_type"], arguments["warmup_steps"]) == ("constant_with_warmup", 10 * 8)


@pytest.mark.parametrize(
    ("name", "rate", "batch", "epochs", "cutoff"),
    [
        ("gap-3b", 1e-5, 32, 4, 5120),
        ("afm-mhqa-7b", 2e-5, 32, 4, 5120),
        ("afm-web-7b", 1.4e-5, 128, 4, 32_768),
        ("afm-code-7b", 3e-5, 32, 2, 32_768),
    ],
)
def test_fine_tuning_has_the_published_numbers(name: str, rate: float, batch: int, epochs: int, cutoff: int) -> None:
    options = load_config(SftOptions, data={"preset": name})
    assert (options.learning_rate, options.batch_size, options.num_train_epochs) == (rate, batch, epochs)
    assert options.cutoff_tokens == cutoff


def test_another_type_replaces_the_table_of_the_preset() -> None:
    """Its keys would be unknown; keys of the same type are kept."""
    preset = {"preset": "agentevolver-7b"}
    for named in ("outcome", {"type": "outcome"}):
        other = load_config(RlOptions, data={**preset, "credit": named})
        assert other.credit.type == "outcome"
        assert RlOptions.model_validate(other.model_dump(mode="json")) == other, "as an engine reads it"
    assert RlOptions(preset="agentevolver-7b", credit=OutcomeCredit()).credit == OutcomeCredit()
    same = load_config(RlOptions, data={**preset, "credit": {"type": "attribution", "fix_base": 0.5}}).credit
    assert isinstance(same, AttributionCredit) and (same.alpha, same.fix_base) == (0.2, 0.5)
