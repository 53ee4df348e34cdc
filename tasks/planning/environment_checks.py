"""Check before a run what its environment allows: pools, operators, scorers, branching, reinforcement."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.core.answers.score import OUTCOME, WORKSPACE_TESTS
from treadle.core.errors import ConfigError
from treadle.core.runs.address import Address
from treadle.datagen.questions.sources import QuestionsSettings
from treadle.environments.registry import traits_of
from treadle.environments.settings import DEFAULT_TYPE, EnvironmentSettings


def check_pools(address: Address, environment: EnvironmentSettings, operators: Sequence[str]) -> None:
    """Raise ConfigError if trajectories of the environment cannot be judged by gold answers, or not be edited."""
    traits, name = traits_of(environment), environment.type
    if not traits.has_answers:
        raise ConfigError(
            f"{address}: pools judges answers, but the tasks of {name} have no gold answers; leave pools out of "
            "flow.stages: sft_rows is made from rollouts and scores"
        )
    if not traits.forks and (editing := [operator for operator in operators if operator != "rerollout"]):
        raise ConfigError(
            f"{address}: {_episode(environment)} cannot be continued from a prefix, which {', '.join(editing)} need; "
            'set pools.operators = ["rerollout"]'
        )


def check_scorers(address: Address, environment: EnvironmentSettings, questions: QuestionsSettings) -> None:
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


def _episode(environment: EnvironmentSettings) -> str:
    """Return what cannot be continued, in words of the configuration."""
    if environment.type == DEFAULT_TYPE:
        return "a rollout with native tool calls (environment.tools, or dialect = functions)"
    return f"an episode of {environment.type}"


def check_rl(address: Address, environment: EnvironmentSettings, *, branches: bool) -> None:
    """Raise ConfigError if the environment cannot be used in reinforcement."""
    traits, name = traits_of(environment), environment.type
    if branches and not traits.forks:
        raise ConfigError(
            f"{address}: {_episode(environment)} cannot be continued from a prefix, which branching needs; leave out "
            "rl.initial_rollouts"
        )
    if traits.roles:
        raise ConfigError(
            f"{address}: episodes of {name} ask other models ({', '.join(traits.roles)}), which cannot be reached "
            "during training; leave rl out of flow.stages"
        )
