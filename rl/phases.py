"""Derive the policy of a phase from a configuration: the options of its training, and the model that is sampled.

Documented in docs/behaviour/curriculum.md.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Protocol

from treadle.core.config import Section
from treadle.core.engines.config import VllmServer
from treadle.core.errors import ConfigError
from treadle.core.llm.config import ModelSettings
from treadle.core.runs.address import Address, phase_name, phase_of
from treadle.rl.config import RlOptions
from treadle.rl.curriculum import CurriculumSettings, PhaseRollouts, policy_before
from treadle.rl.selection.settings import SelectionOptions
from treadle.rl.training.phase_check import check_spread, check_training
from treadle.stages.models import is_hub_id, named_checkpoint, with_weights
from treadle.stages.plan import Plan

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")


def curriculum(plan: Plan) -> CurriculumSettings:
    """Return the phases of a configuration."""
    return plan.section("curriculum", CurriculumSettings)


def phase_number(address: Address) -> int:
    """Return the phase of an instance that has one."""
    phase = phase_of(address.qualifier)
    assert phase is not None, "the catalogue checks it"
    return phase


def rl_options(plan: Plan, address: Address) -> RlOptions:
    """Return the training options of an instance's phase, with its sigmas and its start filled in.

    Raises ConfigError if the reward or credit rule refuses its settings, or if the phase starts from a checkpoint that
    is made later.
    """
    training, phase, own = replace(address, stage="rl"), phase_number(address), plan.section("rl", RlOptions)
    changed_start = plan.overrides(training).get("start", own.start) != own.start
    filled = {
        "start": policy_before(own.start, address.iteration, phase),
        "revision": own.revision if phase == 1 and not changed_start else "",
    }
    options = plan.overridden(training, own.model_copy(update=filled))
    sigma_tool, sigma_length = curriculum(plan).sigmas(phase)
    reward = options.reward.filled(sigma_tool=sigma_tool, sigma_length=sigma_length)
    reward.check(str(training))
    options.credit.check(str(training))
    options = options.model_copy(update={"reward": reward})
    _check_start(plan, options, training, phase)
    if options.symbolic is None:
        options = options.model_copy(update={"symbolic": phase_scores(plan, address).symbolic})
    return options.effective()


class AlgebraOptions(Protocol):
    """Keys of the stage `scores` that rewards use too."""

    symbolic: bool
    symbolic_limit_s: float
    symbolic_memory_mib: int


def phase_scores(plan: Plan, address: Address) -> AlgebraOptions:
    """Return the options of the stage `scores` of a phase, by whose scores its questions are selected."""
    options: Any = plan.options(replace(address, stage="scores"), Section)
    scores: AlgebraOptions = options
    return scores


def _check_start(plan: Plan, options: RlOptions, training: Address, phase: int) -> None:
    """Raise ConfigError if the phase cannot start from `rl.start`, or if that is no hub id and a revision is set."""
    start = options.start
    earlier = [replace(training, qualifier=phase_name(number)) for number in range(1, phase)]
    known = [Address(training.iteration, "sft"), *earlier]
    for made in named_checkpoint(start):
        if made.iteration < training.iteration:
            plan.check_checkpoint(made, f"{training}: rl.start")
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


def check_phase(plan: Plan, address: Address) -> None:
    """Raise ConfigError, before anything is sampled, if a phase could not select any question or could not be trained.

    Training is checked if it is part of the flow or if the address is one of stage `rl`.
    """
    selecting, sampling = replace(address, stage="selection"), replace(address, stage="rollouts")
    selection = plan.options(selecting, SelectionOptions)
    rollouts = plan.options(sampling, PhaseRollouts)
    check_spread(selection, rollouts, str(selecting))
    if "rl" in plan.stages or address.stage == "rl":
        training = replace(address, stage="rl")
        check_training(rl_options(plan, training), selection, rollouts, str(training))


def sampling_model(plan: Plan) -> str:
    """Return the name of the model whose settings serve the policies of phases."""
    return curriculum(plan).sampling_model or plan.policy


def phase_model(plan: Plan, address: Address) -> ModelSettings:
    """Return the model that the rollouts of a phase are sampled from: the policy that its training starts from.

    Its settings are those of the sampling model, with the policy's weights (see `with_weights`). Raises ConfigError as
    `check_phase` does, and for two different revisions of one policy.
    """
    check_phase(plan, address)
    options, name = rl_options(plan, address), sampling_model(plan)
    policy, model = options.start, plan.models[name]
    if isinstance(model.server, VllmServer):
        given = model.server.revision if policy == model.server.model else ""
        if given not in ("", options.revision):
            raise ConfigError(
                f"models.{name}.server.revision = {given} and rl.revision = {options.revision or 'the newest'} are two "
                f"revisions of {policy}, which is sampled and then trained; set rl.revision = {given}"
            )
    return with_weights(model, policy, options.revision)


def phase_policy(plan: Plan, address: Address) -> tuple[Address, ...]:
    """Return the instance whose checkpoint a phase starts from; empty if this run does not make it."""
    return named_checkpoint(rl_options(plan, address).start)
