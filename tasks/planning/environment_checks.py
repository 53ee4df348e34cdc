"""Check before a run what its environment allows: pools, operators, scorers, branching, reinforcement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from treadle.core.errors import ConfigError
from treadle.core.runs.address import Address
from treadle.datagen.questions.sources import QuestionsSettings
from treadle.environments.registry import traits_of
from treadle.environments.scorers.base import Scorer
from treadle.environments.scorers.registry import SCORERS, scorer_named
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


def scorers_in_use(entries: Mapping[str, Scorer], questions: QuestionsSettings) -> dict[str, Scorer]:
    """Return the scorers of users that sources and benchmarks name, by name: entries of a table and entry points.

    Raises ConfigError, listing what there is, for an unknown name.
    """
    found = {name: scorer_named(name, entries) for _, name in questions.named_scorers()}
    return {name: scorer for name, scorer in sorted(found.items()) if name not in SCORERS.shipped}


def check_scorers(
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
