"""Declare the stage `rl` to flows."""

from __future__ import annotations

from dataclasses import replace

from treadle.agent.contexts.clipping import CLIPPER
from treadle.core.engines.base_model import folder_digest
from treadle.core.errors import ConfigError
from treadle.core.runs.address import Address
from treadle.environments.mixture import Environments
from treadle.environments.registry import episode_name, traits_of
from treadle.environments.settings import EnvironmentSettings
from treadle.rl.config import AlgebraLimits, RlOptions, RlSettings
from treadle.rl.experience.entry import experience_input, used_experience
from treadle.rl.phases import check_phase, curriculum, phase_number, phase_policy, phase_scores, rl_options
from treadle.rl.training.engine_environments import check_environments
from treadle.rl.training.stage import RL_STAGE
from treadle.rl.training.summary import rl_report
from treadle.stages.entry import Inputs, StageEntry
from treadle.stages.plan import Plan


def _settings(plan: Plan, address: Address) -> RlSettings:
    """Return the settings of `rl@phase-<k>`.

    Raises ConfigError as `check_phase` does, and for an environment that cannot be used in training.
    """
    check_phase(plan, address)
    options = rl_options(plan, address)
    environments = plan.environments()
    for environment in environments.values():
        _check(address, environment, options)
    check_environments(environments)
    _check_shares(address, options, environments)
    scores = phase_scores(plan, address)
    limits = AlgebraLimits(limit_s=scores.symbolic_limit_s, memory_mib=scores.symbolic_memory_mib)
    return RlSettings(
        options=options,
        phase=phase_number(address),
        phases=curriculum(plan).phases,
        **plan.mixture(),
        scorers=dict(plan.scorers()),
        algebra=limits if options.symbolic else None,
        experience=used_experience(plan, address, options.experience),
        model_digest=folder_digest(options.start),
        seed=plan.seed,
    )


def _check(address: Address, environment: EnvironmentSettings, options: RlOptions) -> None:
    """Raise ConfigError if the environment cannot be used in reinforcement learning."""
    traits, name = traits_of(environment), environment.type
    if options.branches and not traits.forks:
        raise ConfigError(
            f"{address}: {episode_name(environment)} cannot be continued from a prefix, which branching needs; "
            "leave out rl.initial_rollouts"
        )
    if environment.has_several_contexts:
        _check_several_contexts(address, environment, options)
    if asked := [*traits.roles, *(role for role in (CLIPPER,) if role in environment.role_models)]:
        raise ConfigError(
            f"{address}: episodes of {name} ask other models ({', '.join(asked)}), which cannot be reached "
            "during training; leave rl out of flow.stages"
        )


def _check_several_contexts(address: Address, environment: EnvironmentSettings, options: RlOptions) -> None:
    """Raise ConfigError if rollouts with several token sequences cannot be trained on."""
    manager = environment.context.manager
    key = f'context.manager = "{manager}"' if environment.reserve_tokens is None else "trim_reserve_tokens"
    why = ""
    if not options.engine.trains_several_samples:
        why = f'rl.engine = "{options.engine.type}" trains on one; use "trl"'
    elif options.branches:
        why = "branching needs one per rollout; leave out rl.initial_rollouts"
    elif entropy := [name for name in options.extra if name.startswith("entropy")]:
        why = f"rl.extra.{entropy[0]} would weigh their tokens by micro-batches; leave it out"
    elif options.loss_agg != "token_mean":
        why = f'rl.loss_agg = "{options.loss_agg}" would weigh rollouts by their number; use "token_mean"'
    if why:
        raise ConfigError(
            f"{address}: {episode_name(environment)} has several token sequences per rollout with environment.{key}, "
            f"but {why}"
        )


def _check_shares(address: Address, options: RlOptions, environments: Environments) -> None:
    """Raise ConfigError if `rl.shares` names an environment to which no source of questions belongs."""
    if unknown := sorted(options.shares.keys() - environments.keys()):
        raise ConfigError(
            f"{address}: rl.shares names {unknown[0]!r}, but the sources of questions belong to "
            f"{', '.join(sorted(environments))}; set `environment` of a source, or remove the share"
        )


def _inputs(plan: Plan, address: Address) -> Inputs:
    """Return the inputs of `rl@phase-<k>`: its rows, questions to validate on, and the policy that it starts from."""
    return {
        "rl_rows": (replace(address, stage="selection"),),
        "questions": (Address(address.iteration, "questions"),),
        "checkpoint": phase_policy(plan, address),
        **experience_input(address, plan.options(address, RlOptions).experience),
    }


RL = StageEntry(
    stage=RL_STAGE,
    table=RlOptions,
    settings=_settings,
    inputs=_inputs,
    qualifiers=("phase",),
    start_key="start",
    report=rl_report,
    description="Train a policy in a phase, such as 1/rl@phase-2; needs a worker with the environment of `rl.engine`.",
    on_gpu=True,
)
