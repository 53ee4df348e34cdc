"""Declare the stage `experience` to flows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from treadle.agent.role_settings import RoleSettings
from treadle.core.errors import ConfigError
from treadle.core.llm.config import ModelSettings
from treadle.core.runs.address import Address
from treadle.core.runs.stage import Stage, StageContext, WorkResult
from treadle.core.untrusted.input_files import file_sha256
from treadle.rl.experience.settings import ExperienceOptions, ExperienceSettings, ExperienceUse
from treadle.rl.experience.tables import EXPERIENCE as EXPERIENCE_TABLE
from treadle.rl.preferences.entry import policy_rollouts
from treadle.stages.entry import Inputs, NamedModel, StageEntry
from treadle.stages.models import checkpoints_of, role_of
from treadle.stages.plan import Plan


def experience_roles(
    models: Mapping[str, ModelSettings], options: ExperienceOptions, where: str
) -> tuple[RoleSettings, RoleSettings]:
    """Return the settings of summariser and validator; raise ConfigError if they are not configured.

    `where` begins the message, such as `1/experience: `.
    """
    name = options.summariser.model
    if name is None:
        raise ConfigError(f"{where}no model summarises rollouts; set experience.summariser.model to one of [models]")
    found = []
    for key, named, sampling in (
        ("summariser", name, options.summariser.sampling),
        ("validator", options.validator.model or name, options.validator.sampling),
    ):
        if named not in models:
            raise ConfigError(f"{where}experience.{key}.model names {named!r}, which is not under [models]")
        found.append(role_of(named, models[named], sampling))
    return found[0], found[1]


def used_experience(plan: Plan, address: Address, use: ExperienceUse) -> ExperienceSettings | None:
    """Return the settings of the pool of a training, with its models only if it is updated; None without a pool.

    Raises ConfigError as `experience_roles` does.
    """
    if not use.is_used:
        return None
    made = Address(address.iteration, "experience")
    options = plan.options(made, ExperienceOptions)
    summariser, validator = experience_roles(plan.models, options, f"{address}: ") if use.update_steps else (None, None)
    return ExperienceSettings(summariser=summariser, validator=validator, options=options, seed=plan.seed)


def experience_input(address: Address, use: ExperienceUse) -> Inputs:
    """Return the instance whose pool a training begins with; empty without one."""
    return {"experience": (Address(address.iteration, "experience"),)} if use.is_used and use.initial else {}


def _settings(plan: Plan, address: Address) -> ExperienceSettings:
    options = plan.options(address, ExperienceOptions)
    if not options.initialise and not options.pool:
        raise ConfigError(f"{address}: the pool would be empty; set experience.pool, or experience.initialise = true")
    summariser, validator = (
        experience_roles(plan.models, options, f"{address}: ") if options.initialise else (None, None)
    )
    return ExperienceSettings(
        summariser=summariser,
        validator=validator,
        options=options,
        pool_digests=tuple(map(file_sha256, options.pool)),
        seed=plan.seed,
    )


def _inputs(plan: Plan, address: Address) -> Inputs:
    options = plan.options(address, ExperienceOptions)
    questions = {"questions": (Address(address.iteration, "questions"),)}
    if not options.initialise:
        return questions
    rollouts = policy_rollouts(plan, address.iteration)
    models = [name for name in (options.summariser.model, options.validator.model) if name in plan.models]
    return {
        **questions,
        "rollouts": (rollouts,),
        "scores": (replace(rollouts, stage="scores"),),
        "checkpoint": checkpoints_of(plan, models),
    }


def _models(options: ExperienceOptions) -> Iterator[NamedModel]:
    yield NamedModel("summariser.model", options.summariser.model)
    yield NamedModel("validator.model", options.validator.model)


def _run(context: StageContext) -> Mapping[str, Any]:
    from treadle.rl.experience.run import ExperienceRun

    return ExperienceRun(context).write()


def _work(context: StageContext) -> WorkResult:
    from treadle.core import steady_loop
    from treadle.rl.experience.run import ExperienceRun

    return steady_loop.run(ExperienceRun(context).work())


EXPERIENCE_STAGE = Stage(
    name="experience",
    version=1,
    settings=ExperienceSettings,
    consumes={name: name for name in ("rollouts", "scores", "questions", "checkpoint")},
    optional=frozenset({"rollouts", "scores", "checkpoint"}),
    produces=(EXPERIENCE_TABLE,),
    run=_run,
    work=_work,
)
EXPERIENCE = StageEntry(
    stage=EXPERIENCE_STAGE,
    table=ExperienceOptions,
    settings=_settings,
    inputs=_inputs,
    models=_models,
    description="Summarise rollouts of training tasks as experience that later rollouts see.",
    on_gpu=True,
)
