"""Check before a run what its environment allows: pools, operators, branching, reinforcement."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.core.errors import ConfigError
from treadle.core.runs.address import Address
from treadle.environments.registry import traits_of
from treadle.environments.settings import EnvironmentSettings


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
            f"{address}: an episode of {name} cannot be continued from a prefix, which {', '.join(editing)} need; set "
            'pools.operators = ["rerollout"]'
        )


def check_rl(address: Address, environment: EnvironmentSettings, *, branches: bool) -> None:
    """Raise ConfigError if the environment cannot be used in reinforcement."""
    traits, name = traits_of(environment), environment.type
    if branches and not traits.forks:
        raise ConfigError(
            f"{address}: an episode of {name} cannot be continued from a prefix, which branching needs; leave out "
            "rl.initial_rollouts"
        )
    if traits.roles:
        raise ConfigError(
            f"{address}: episodes of {name} ask other models ({', '.join(traits.roles)}), which cannot be reached "
            "during training; leave rl out of flow.stages"
        )
