"""Derive the instances of curriculum phases from the configuration: policies, serving models, settings, inputs.

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
from treadle.core.runs.address import Address
from treadle.eval.config import ScoresOptions
from treadle.rl.config import AlgebraLimits, RlOptions, RlSettings
from treadle.rl.curriculum import phase_addresses, phase_name, phase_of, policy_before
from treadle.rl.selection.settings import SelectionSettings
from treadle.rl.training.phase_check import check_spread, check_training
from treadle.rl.training.plan import check_sigmas
from treadle.rl.training.stage import local_environment
from treadle.tasks.config import TreadleConfig, environment_of, overridden
from treadle.tasks.planning.environment_checks import check_rl, scorers_in_use
from treadle.tasks.planning.models import check_named_checkpoint, is_hub_id, named_checkpoint, pool_models, with_weights

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")


def flow_phases(config: TreadleConfig, iteration: int) -> list[Address]:
    """Return the instances of all phases that are part of the flow, producers first."""
    if "rl" in config.flow.stages:
        phases = range(1, config.curriculum.phases + 1)
        return [address for phase in phases for address in phase_addresses(iteration, phase)]
    return list(phase_addresses(iteration, 1)[:-1]) if "selection" in config.flow.stages else []


def phase_at(config: TreadleConfig, address: Address) -> int | None:
    """Return the phase of an instance, or None if it has none; raise ConfigError for one beyond the curriculum."""
    phase = phase_of(address.qualifier)
    if phase is not None and phase > config.curriculum.phases:
        raise ConfigError(
            f"{address}: the curriculum has {config.curriculum.phases} phases; the last one is "
            f"{replace(address, qualifier=phase_name(config.curriculum.phases))}"
        )
    return phase


def rl_options(config: TreadleConfig, address: Address) -> RlOptions:
    """Return the training options of an instance's phase, with its sigmas and its start filled in.

    Raises ConfigError if neither calls nor length would count, or if the phase starts from a checkpoint that is made
    later.
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
        raise ConfigError(f'overrides."{training}" removes a sigma; drop the override, or give a number')
    check_sigmas(
        options.sigma_tool, options.sigma_length, allow_zero_sigmas=options.allow_zero_sigmas, where=str(training)
    )
    _check_start(config, options, training, phase)
    if options.symbolic is None:
        options = options.model_copy(update={"symbolic": _scores(config, address).symbolic})
    return options.effective()


def _scores(config: TreadleConfig, address: Address) -> ScoresOptions:
    """Return the options of the scores that a phase is selected by."""
    return overridden(config, replace(address, stage="scores"), config.scores)


def _check_start(config: TreadleConfig, options: RlOptions, training: Address, phase: int) -> None:
    """Raise ConfigError for a start that the phase cannot have, or a revision of anything but a hub id."""
    start = options.start
    earlier = [replace(training, qualifier=phase_name(number)) for number in range(1, phase)]
    known = [Address(training.iteration, "sft"), *earlier]
    for made in named_checkpoint(start):
        if made.iteration < training.iteration:
            check_named_checkpoint(config, made, f"{training}: rl.start")
        elif made not in known:
            raise ConfigError(
                f"{training}: rl.start = {start} is not made before this phase; use {' or '.join(map(str, known))}, "
                "`embedded`, a folder, or a hub id"
            )
    if is_hub_id(start) and not _HUB_ID.fullmatch(start):
        raise ConfigError(f"{training}: rl.start = {start!r} is neither a folder that exists nor a hub id")
    if options.revision and not is_hub_id(start):
        raise ConfigError(
            f"{training}: rl.revision = {options.revision} needs a hub id, but rl.start = {start} is not one; remove it"
        )


def check_phase(config: TreadleConfig, address: Address) -> None:
    """Raise ConfigError, before anything is sampled, if a phase could not select any question or could not be trained.

    Training is checked if it is part of the flow or if the address is one of stage `rl`.
    """
    selecting, sampling = replace(address, stage="selection"), replace(address, stage="rollouts")
    selection = overridden(config, selecting, config.selection)
    rollouts = overridden(config, sampling, config.curriculum.rollouts)
    check_spread(selection, rollouts, str(selecting))
    if "rl" in config.flow.stages or address.stage == "rl":
        training = replace(address, stage="rl")
        check_training(rl_options(config, training), selection, rollouts, str(training))


def sampling_model(config: TreadleConfig) -> str:
    """Return the name of the model whose settings serve the policies of phases."""
    return config.curriculum.sampling_model or pool_models(config)["policy"]


def phase_model(config: TreadleConfig, address: Address) -> ModelSettings:
    """Return the model that the rollouts of a phase are sampled from: the policy that its training starts from.

    Its settings are those of the sampling model (see `with_weights`). Raises ConfigError as `check_phase` does, and for
    two different revisions of one policy.
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
    """Return the instance whose checkpoint a phase starts from; empty if this run does not make it."""
    return named_checkpoint(rl_options(config, address).start)


def selection_settings(config: TreadleConfig, address: Address) -> SelectionSettings:
    """Return the settings of `selection@phase-<k>`; raise ConfigError as `check_phase` does."""
    check_phase(config, address)
    return SelectionSettings(
        options=overridden(config, address, config.selection),
        phase=_phase(address),
        environment=environment_of(config),
        seed=config.seed,
    )


def selection_inputs(config: TreadleConfig, address: Address) -> Mapping[str, tuple[Address, ...]]:
    """Return the inputs of `selection@phase-<k>`: rollouts and scores of its phase, and rows of earlier phases."""
    iteration, phase = address.iteration, _phase(address)
    return {
        "rollouts": (replace(address, stage="rollouts"),),
        "scores": (replace(address, stage="scores"),),
        "questions": (Address(iteration, "questions"),),
        "previous": tuple(Address(iteration, "selection", phase_name(earlier)) for earlier in range(1, phase)),
    }


def rl_settings(config: TreadleConfig, address: Address) -> RlSettings:
    """Return the settings of `rl@phase-<k>`.

    Raises ConfigError as `check_phase` does, and for an environment that cannot be used in training.
    """
    check_phase(config, address)
    options, environment = rl_options(config, address), environment_of(config)
    check_rl(address, environment, branches=options.branches)
    local_environment(environment)
    scores = _scores(config, address)
    limits = AlgebraLimits(limit_s=scores.symbolic_limit_s, memory_mib=scores.symbolic_memory_mib)
    return RlSettings(
        options=options,
        phase=_phase(address),
        phases=config.curriculum.phases,
        environment=environment,
        scorers=scorers_in_use(config.scorers, config.questions),
        algebra=limits if options.symbolic else None,
        model_digest=folder_digest(options.start),
        seed=config.seed,
    )


def rl_inputs(config: TreadleConfig, address: Address) -> Mapping[str, tuple[Address, ...]]:
    """Return the inputs of `rl@phase-<k>`: its rows, questions to validate on, and the policy that it starts from."""
    return {
        "rl_rows": (replace(address, stage="selection"),),
        "questions": (Address(address.iteration, "questions"),),
        "checkpoint": phase_policy(config, address),
    }


def _phase(address: Address) -> int:
    phase = phase_of(address.qualifier)
    assert phase is not None, "the catalogue checks it"
    return phase
