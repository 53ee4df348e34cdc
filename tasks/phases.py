"""What the phases of the curriculum make of a configuration: policies, who serves them, settings, inputs.

Documented in docs/behaviour/curriculum.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from treadle.core.engines.base_model import folder_digest
from treadle.core.engines.config import VllmServer
from treadle.core.errors import ConfigError
from treadle.core.llm.config import ModelSettings
from treadle.core.stage import Address
from treadle.rl.config import RlOptions, RlSettings
from treadle.rl.curriculum import phase_addresses, phase_name, phase_of, policy_before
from treadle.rl.phase_check import check_spread, check_training
from treadle.rl.selection_settings import SelectionSettings
from treadle.rl.sigmas import check_sigmas
from treadle.rl.stage import local_environment
from treadle.tasks.config import TreadleConfig, environment_of, overridden
from treadle.tasks.models import check_made_here, is_hub_id, made_here, pool_models, with_weights

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")


def flow_phases(config: TreadleConfig, iteration: int) -> list[Address]:
    """The instances of all phases that are part of the flow, producers first."""
    if "rl" in config.flow.stages:
        phases = range(1, config.curriculum.phases + 1)
        return [address for phase in phases for address in phase_addresses(iteration, phase)]
    return list(phase_addresses(iteration, 1)[:-1]) if "selection" in config.flow.stages else []


def phase_at(config: TreadleConfig, address: Address) -> int | None:
    """The phase of an instance, None where it is of none; raises ConfigError for one that the curriculum has not."""
    phase = phase_of(address.qualifier)
    if phase is not None and phase > config.curriculum.phases:
        raise ConfigError(
            f"{address}: the curriculum has {config.curriculum.phases} phases; the last one is "
            f"{replace(address, qualifier=phase_name(config.curriculum.phases))}"
        )
    return phase


def rl_options(config: TreadleConfig, address: Address) -> RlOptions:
    """How the phase of an instance trains, with its sigmas and its start filled in.

    Raises ConfigError for a phase in which neither calls nor length would count, or that begins with what comes later.
    """
    training, phase, own = replace(address, stage="rl"), _phase(address), config.rl
    changed_start = config.overrides.get(str(training), {}).get("start", own.start) != own.start
    sigma_tool, sigma_length = config.curriculum.sigmas(phase)
    filled = {
        "start": policy_before(own.start, address.iteration, phase),
        "revision": own.revision if phase == 1 and not changed_start else "",
        "sigma_tool": sigma_tool if own.sigma_tool is None else own.sigma_tool,
        "sigma_length": sigma_length if own.sigma_length is None else own.sigma_length,
    }
    options = overridden(config, training, own.model_copy(update=filled))
    if options.sigma_tool is None or options.sigma_length is None:
        raise ConfigError(f'overrides."{training}" takes a sigma away; leave it out, or give a number')
    check_sigmas(options.sigma_tool, options.sigma_length, allow_plain=options.allow_plain, where=str(training))
    _check_start(config, options, training, phase)
    return options.effective()


def _check_start(config: TreadleConfig, options: RlOptions, training: Address, phase: int) -> None:
    """Raise ConfigError for a checkpoint that cannot be there before the phase, or a revision of what has none."""
    start = options.start
    earlier = [replace(training, qualifier=phase_name(number)) for number in range(1, phase)]
    known = [Address(training.iteration, "sft"), *earlier]
    for made in made_here(start):
        if made.iteration < training.iteration:
            check_made_here(config, made, f"{training}: rl.start")
        elif made not in known:
            raise ConfigError(
                f"{training}: rl.start = {start} is not made before this phase; name {' or '.join(map(str, known))}, "
                "`embedded`, a folder, or a hub id"
            )
    if is_hub_id(start) and not _HUB_ID.fullmatch(start):
        raise ConfigError(f"{training}: rl.start = {start!r} is neither a folder that exists nor a hub id")
    if options.revision and not is_hub_id(start):
        raise ConfigError(
            f"{training}: rl.revision = {options.revision} is that of a hub id, and rl.start = {start} is none; "
            "leave it out"
        )


def check_phase(config: TreadleConfig, address: Address) -> None:
    """Raise ConfigError for a phase that could select no question, or could not be trained, before it is sampled.

    Its training is looked at where it is part of the flow or asked for.
    """
    selecting, sampling = replace(address, stage="selection"), replace(address, stage="rollouts")
    selection = overridden(config, selecting, config.selection)
    rollouts = overridden(config, sampling, config.curriculum.rollouts)
    check_spread(selection, rollouts, str(selecting))
    if "rl" in config.flow.stages or address.stage == "rl":
        training = replace(address, stage="rl")
        check_training(rl_options(config, training), selection, rollouts, str(training))


def sampling_model(config: TreadleConfig) -> str:
    """Name of the model whose settings serve the policies of phases."""
    return config.curriculum.sampling_model or pool_models(config)["policy"]


def phase_model(config: TreadleConfig, address: Address) -> ModelSettings:
    """The model that the trajectories of a phase are sampled from: what its training begins with (`with_weights`).

    Raises ConfigError as `check_phase` does, and for two revisions of one policy.
    """
    check_phase(config, address)
    options, name = rl_options(config, address), sampling_model(config)
    policy, model = options.start, config.models[name]
    if isinstance(model.server, VllmServer):
        given = model.server.revision if policy == model.server.model else ""
        if given not in ("", options.revision):
            raise ConfigError(
                f"models.{name}.server.revision = {given} and rl.revision = {options.revision or 'the newest'} are two "
                f"revisions of {policy}, which is sampled and then trained; set rl.revision = {given}"
            )
    return with_weights(model, policy, options.revision)


def phase_policy(config: TreadleConfig, address: Address) -> tuple[Address, ...]:
    """The instance whose checkpoint a phase begins with; none where that is not made by this run."""
    return made_here(rl_options(config, address).start)


def selection_settings(config: TreadleConfig, address: Address) -> SelectionSettings:
    """Settings of `selection@phase-<k>`; raises ConfigError as `check_phase` does."""
    check_phase(config, address)
    return SelectionSettings(
        options=overridden(config, address, config.selection),
        phase=_phase(address),
        environment=environment_of(config),
        seed=config.seed,
    )


def selection_inputs(config: TreadleConfig, address: Address) -> Mapping[str, tuple[Address, ...]]:
    """What `selection@phase-<k>` reads: the rollouts and scores of its phase, and the rows of all phases before."""
    iteration, phase = address.iteration, _phase(address)
    return {
        "rollouts": (replace(address, stage="rollouts"),),
        "scores": (replace(address, stage="scores"),),
        "questions": (Address(iteration, "questions"),),
        "previous": tuple(Address(iteration, "selection", phase_name(earlier)) for earlier in range(1, phase)),
    }


def rl_settings(config: TreadleConfig, address: Address) -> RlSettings:
    """Settings of `rl@phase-<k>`; raises ConfigError as `check_phase` does, and for an environment that no training
    can be given."""
    check_phase(config, address)
    options, environment = rl_options(config, address), environment_of(config)
    local_environment(environment)
    return RlSettings(
        options=options,
        phase=_phase(address),
        phases=config.curriculum.phases,
        environment=environment,
        model_digest=folder_digest(options.start),
        seed=config.seed,
    )


def rl_inputs(config: TreadleConfig, address: Address) -> Mapping[str, tuple[Address, ...]]:
    """What `rl@phase-<k>` reads: its rows, questions to validate on, and the policy that it begins with."""
    return {
        "rl_rows": (replace(address, stage="selection"),),
        "questions": (Address(address.iteration, "questions"),),
        "checkpoint": phase_policy(config, address),
    }


def _phase(address: Address) -> int:
    phase = phase_of(address.qualifier)
    assert phase is not None, "the catalogue checks it"
    return phase
