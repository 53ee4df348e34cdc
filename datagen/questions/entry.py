"""Declare the stage `questions` to flows."""

from __future__ import annotations

from treadle.core.answers.score import OUTCOME, WORKSPACE_TESTS
from treadle.core.errors import ConfigError
from treadle.core.runs.address import Address
from treadle.datagen.questions.sources import QuestionsSettings
from treadle.datagen.questions.stage import QUESTIONS_STAGE
from treadle.environments.registry import traits_of
from treadle.environments.settings import EnvironmentSettings
from treadle.stages.entry import StageEntry
from treadle.stages.plan import Plan


def _settings(plan: Plan, address: Address) -> QuestionsSettings:
    environment = plan.environment_with_digests()
    traits = traits_of(environment)
    options = plan.options(address, QuestionsSettings)
    _check_scorers(address, environment, options)
    asked = options.for_environment(
        environment.type,
        needs_answers=traits.has_answers,
        tasks_digest=environment.digest() if traits.brings_tasks else "",
        seed=plan.seed,
        environment=environment,
    )
    return asked.with_digests()


def _check_scorers(address: Address, environment: EnvironmentSettings, questions: QuestionsSettings) -> None:
    """Raise ConfigError if the outcome that decides about the tasks of a source cannot exist."""
    if not traits_of(environment).has_answers:
        return
    tools = [tool for tool in environment.tools.values() if tool.max_calls != 0]
    for source in questions.sources:
        if source.scorer == WORKSPACE_TESTS and not any(tool.type == "workspace" for tool in tools):
            missing = 'a tool with type = "workspace"'
        elif source.scorer == OUTCOME and not any(tool.gives_outcome for tool in tools):
            missing = "a class with a method `outcome`"
        else:
            continue
        raise ConfigError(
            f"{address}: scorer = {source.scorer!r} of {source.label} needs {missing} in environment.tools"
        )


QUESTIONS = StageEntry(
    stage=QUESTIONS_STAGE,
    table=QuestionsSettings,
    settings=_settings,
    inputs=lambda plan, address: {},
    description="Read, check and deduplicate the questions.",
)
