"""Declare the stage `questions` to flows."""

from __future__ import annotations

from collections.abc import Mapping

from treadle.core.errors import ConfigError
from treadle.core.runs.address import Address
from treadle.datagen.questions.sources import QuestionsSettings
from treadle.datagen.questions.stage import QUESTIONS_STAGE
from treadle.environments.registry import traits_of
from treadle.environments.scorers.base import Scorer
from treadle.environments.scorers.registry import scorer_named
from treadle.environments.settings import EnvironmentSettings
from treadle.stages.entry import StageEntry
from treadle.stages.plan import Plan


def _settings(plan: Plan, address: Address) -> QuestionsSettings:
    environment = plan.environment_with_digests()
    traits = traits_of(environment)
    options = plan.options(address, QuestionsSettings)
    scorers = plan.scorers()
    _check_scorers(address, environment, options, scorers)
    asked = options.for_environment(
        environment.type,
        needs_answers=traits.has_answers,
        tasks_digest=environment.digest() if traits.brings_tasks else "",
        seed=plan.seed,
        environment=environment,
        scorers=scorers,
    )
    return asked.with_digests()


def _check_scorers(
    address: Address, environment: EnvironmentSettings, questions: QuestionsSettings, entries: Mapping[str, Scorer]
) -> None:
    """Raise ConfigError if what a source's scorer needs cannot exist: gold answers, or something of the environment."""
    has_answers = traits_of(environment).has_answers
    for source in questions.sources:
        if source.scorer is None:
            continue
        scorer = scorer_named(source.scorer, entries)
        if scorer.NEEDS_ANSWERS and not has_answers:
            raise ConfigError(
                f"{address}: scorer = {source.scorer!r} of {source.label} compares with gold answers, which the tasks "
                f"of {environment.type} do not have; leave it out"
            )
        if (missing := scorer.missing(environment)) is not None:
            raise ConfigError(f"{address}: scorer = {source.scorer!r} of {source.label} needs {missing}")


QUESTIONS = StageEntry(
    stage=QUESTIONS_STAGE,
    table=QuestionsSettings,
    settings=_settings,
    inputs=lambda plan, address: {},
    description="Read, check and deduplicate the questions.",
)
