"""Declare the stage `exploration` to flows: its roles, its grader, and what it reads."""

from __future__ import annotations

from collections.abc import Iterator

from treadle.agent.role_settings import RoleSettings
from treadle.core.errors import ConfigError
from treadle.core.runs.address import Address
from treadle.datagen.exploration.profile import Profile, explored_environments, find_profile
from treadle.datagen.exploration.settings import BY_ENVIRONMENT, ROLES, ExplorationOptions, ExplorationSettings
from treadle.datagen.exploration.stage import EXPLORATION_STAGE
from treadle.datagen.exploration.summary import exploration_report
from treadle.datagen.prompts import SUMMARISE, PromptSet
from treadle.environments.mixture import Environments, summarizer_of, summarizer_sampling_of
from treadle.environments.registry import traits_of
from treadle.environments.rollouts.entry import environment_roles
from treadle.environments.scorers.base import Scorer
from treadle.stages.entry import Inputs, NamedModel, StageEntry
from treadle.stages.models import checkpoints_of, role_of
from treadle.stages.plan import Plan

SEED = "seed"
"""Qualifier of the instance of `questions` with the seed tasks."""


def _settings(plan: Plan, address: Address) -> ExplorationSettings:
    options = plan.options(address, ExplorationOptions)
    for name, environment in _explored(plan, address).items():
        if not traits_of(environment).explores:
            raise ConfigError(
                f"{address}: environments of the type {environment.type!r}, such as {name}, show only tasks of their "
                "own, so they cannot be explored; leave exploration out of flow.stages, or let its class say `explores`"
            )
    return ExplorationSettings(
        **plan.mixture(),
        roles=_roles(plan, address, options),
        environment_roles=environment_roles(plan),
        summarizer=_summarizer(plan),
        options=options,
        grader=_grader(plan, address, options),
        scorers=dict(plan.scorers()),
        profiles=_profiles(plan, address, options),
        prompt_digests=PromptSet(options.prompts, SUMMARISE, "exploration.prompts").digests(),
        seed=plan.seed,
    )


def _explored(plan: Plan, address: Address) -> Environments:
    return explored_environments(plan, _seeds(address))


def _seeds(address: Address) -> Address:
    return Address(address.iteration, "questions", SEED)


def _roles(plan: Plan, address: Address, options: ExplorationOptions) -> dict[str, RoleSettings]:
    """Return the models of the roles.

    Raises ConfigError for a missing model, or if summariser and solver are the same model.
    """
    found = {}
    for role in ROLES:
        given = getattr(options.roles, role)
        if given.model is None or given.model not in plan.models:
            what = "is not set" if given.model is None else f"names {given.model!r}, which is not under [models]"
            raise ConfigError(f"{address}: exploration.roles.{role}.model {what}; give the name of one of [models]")
        found[role] = role_of(given.model, plan.models[given.model], given.sampling)
    author, solver = found["summariser"], found["solver"]
    if author.name == solver.name or _served(author) == _served(solver):
        raise ConfigError(
            f"{address}: exploration.roles.summariser and exploration.roles.solver are the same model "
            f"({author.name}, {solver.name}): whether a task can be solved must not be tried by the model that wrote "
            "it; name another one as solver"
        )
    return found


def _served(role: RoleSettings) -> list[object]:
    """Return what identifies the weights of a role's model, whatever its name in the configuration is."""
    model = role.model
    server = None if model.server is None else model.server.model_dump(mode="json")
    return [model.model, model.revision, sorted(one.url for one in model.endpoints), server]


def _grader(plan: Plan, address: Address, options: ExplorationOptions) -> Scorer | None:
    """Return the grader of the new tasks; None if their environment scores them by their reference actions.

    Raises ConfigError if the environment cannot do so, or if the grader needs gold answers or does not exist.
    """
    if options.grader != BY_ENVIRONMENT:
        grader = plan.scorers().get(options.grader)
        if grader is None or grader.NEEDS_ANSWERS:
            raise ConfigError(
                f"{address}: exploration.grader = {options.grader!r} compares with gold answers, which new tasks do "
                "not have; name an entry of [scorers] that reads rollouts, such as one of the type llm-binary-gt"
            )
        grader.check(f"{address}: exploration.grader")
        return grader
    for environment in _explored(plan, address).values():
        if not traits_of(environment).scores_references:
            raise ConfigError(
                f'{address}: exploration.grader = "{BY_ENVIRONMENT}", but environments of the type '
                f"{environment.type!r} cannot score the tasks that are made of them; add an entry under [scorers] with "
                'type = "llm-binary-gt" and a model, and name it as exploration.grader'
            )
    return None


def _summarizer(plan: Plan) -> RoleSettings | None:
    name, sampling = summarizer_of(plan.environments()), summarizer_sampling_of(plan.environments())
    return None if name is None or sampling is None else role_of(name, plan.models[name], sampling)


def _profiles(plan: Plan, address: Address, options: ExplorationOptions) -> dict[str, Profile]:
    """Return the description of each environment for models; raise ConfigError for a file of an unknown environment."""
    environments = _explored(plan, address)
    if unknown := sorted(options.profiles.keys() - environments.keys()):
        raise ConfigError(
            f"{address}: exploration.profiles has {unknown[0]!r}, but tasks belong to {', '.join(sorted(environments))}"
        )
    return {
        name: find_profile(options.profiles.get(name), one.type, f"exploration.profiles.{name}")
        for name, one in environments.items()
    }


def _inputs(plan: Plan, address: Address) -> Inputs:
    options = plan.options(address, ExplorationOptions)
    names = [getattr(options.roles, role).model for role in ROLES]
    return {
        "questions": (_seeds(address),),
        "checkpoint": checkpoints_of(plan, (name for name in names if name in plan.models)),
    }


def _models(options: ExplorationOptions) -> Iterator[NamedModel]:
    for role in ROLES:
        yield NamedModel(f"roles.{role}.model", getattr(options.roles, role).model)


EXPLORATION = StageEntry(
    stage=EXPLORATION_STAGE,
    table=ExplorationOptions,
    settings=_settings,
    inputs=_inputs,
    models=_models,
    report=exploration_report,
    description="Explore the states of training tasks, and make further tasks of what was found.",
    on_gpu=True,
)
