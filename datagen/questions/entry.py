"""Declare the stage `questions` to flows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treadle.core.errors import ConfigError
from treadle.core.runs.address import Address
from treadle.core.runs.stage import Stage, StageContext
from treadle.datagen.questions.source_rows import with_digests
from treadle.datagen.questions.sources import MixtureSettings, QuestionsSettings
from treadle.datagen.questions.tables import QUARANTINE
from treadle.datagen.questions.tables import QUESTIONS as QUESTIONS_TABLE
from treadle.datagen.questions.task_environment import TaskEnvironment
from treadle.environments.mixture import Environments
from treadle.environments.registry import traits_of
from treadle.environments.scorers.base import Scorer
from treadle.environments.scorers.registry import scorer_named
from treadle.environments.settings import EnvironmentSettings
from treadle.stages.entry import Inputs, StageEntry
from treadle.stages.plan import Plan


def _settings(plan: Plan, address: Address) -> QuestionsSettings:
    mixture = plan.mixture()
    environments = {name: mixture["environments"].get(name, mixture["environment"]) for name in plan.environments()}
    options = plan.options(address, QuestionsSettings)
    if unknown := sorted(set(options.environment_names()) - environments.keys()):
        raise ConfigError(
            f"{address}: its sources belong to the environment {unknown[0]!r}, but none under [questions] does; other "
            "stages would not have it"
        )
    scorers = plan.scorers()
    _check_scorers(address, environments, options, scorers)
    known = {name: _task_environment(one) for name, one in environments.items()}
    if not _explored(plan, address):
        if address.qualifier is None and options.mixture != MixtureSettings():
            raise ConfigError(f"{address}: questions.mixture mixes explored tasks; add exploration to flow.stages")
        options = options.model_copy(update={"mixture": MixtureSettings()})
    return with_digests(options.for_environments(known, seed=plan.seed, scorers=scorers))


def _explored(plan: Plan, address: Address) -> tuple[Address, ...]:
    """Return the instance whose tasks are mixed in; empty for the seed tasks, and if the flow does not explore."""
    if address.qualifier is not None or "exploration" not in plan.stages:
        return ()
    return (Address(address.iteration, "exploration"),)


def _inputs(plan: Plan, address: Address) -> Inputs:
    return {"exploration": explored} if (explored := _explored(plan, address)) else {}


def _task_environment(environment: EnvironmentSettings) -> TaskEnvironment:
    traits = traits_of(environment)
    return TaskEnvironment(
        kind=environment.type,
        needs_answers=traits.has_answers,
        brings_tasks=traits.brings_tasks,
        tasks_digest=environment.digest() if traits.brings_tasks else "",
        settings=environment.model_dump(mode="json"),
    )


def _check_scorers(
    address: Address, environments: Environments, questions: QuestionsSettings, entries: Mapping[str, Scorer]
) -> None:
    """Raise ConfigError if a source's environment lacks what its scorer needs, such as gold answers."""
    for source in questions.sources:
        if source.scorer is None:
            continue
        environment, scorer = environments[source.environment], scorer_named(source.scorer, entries)
        if scorer.NEEDS_ANSWERS and not traits_of(environment).has_answers:
            raise ConfigError(
                f"{address}: scorer = {source.scorer!r} of {source.label} compares with gold answers, which the tasks "
                f"of {environment.type} do not have; leave it out"
            )
        scorer.check(f"{address}: scorer = {source.scorer!r} of {source.label}")
        if (missing := scorer.missing(environment)) is not None:
            raise ConfigError(f"{address}: scorer = {source.scorer!r} of {source.label} needs {missing}")


def _run(context: StageContext) -> Mapping[str, Any]:
    from treadle.datagen.questions.stage import run_questions

    return run_questions(context)


QUESTIONS_STAGE = Stage(
    name="questions",
    version=3,
    settings=QuestionsSettings,
    consumes={"exploration": "synthetic_tasks"},
    optional=frozenset({"exploration"}),
    produces=(QUESTIONS_TABLE, QUARANTINE),
    run=_run,
)
QUESTIONS = StageEntry(
    stage=QUESTIONS_STAGE,
    table=QuestionsSettings,
    settings=_settings,
    inputs=_inputs,
    description="Read, check and deduplicate the questions.",
)
