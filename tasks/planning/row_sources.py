"""Determine what the fine-tuning rows of a run are made from: pools, or scored rollouts of the policy."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from treadle.core.errors import ConfigError
from treadle.core.llm.config import ModelSettings
from treadle.core.runs.address import Address
from treadle.environments.registry import traits_of
from treadle.tasks.config import TreadleConfig, overridden
from treadle.tasks.planning.iterations import starting_policy
from treadle.tasks.planning.models import pool_models, with_weights


def row_source(config: TreadleConfig, address: Address) -> Literal["pools", "rollouts"]:
    """Return what the fine-tuning rows of an instance are made from.

    Raises ConfigError for pools of an environment whose tasks have no gold answers.
    """
    wanted = overridden(config, address, config.sft_rows).trajectories
    has_answers = traits_of(config.environment).has_answers
    if wanted == "pools" and not has_answers:
        raise ConfigError(
            f"{address}: sft_rows.trajectories = pools, but there are no pools of {config.environment.type}, whose "
            "tasks have no gold answers; leave the key out, then rows are made from rollouts"
        )
    return wanted or ("pools" if has_answers else "rollouts")


def row_policy(config: TreadleConfig, iteration: int) -> str:
    """Return the name of the model whose trajectories become rows: the policy of `pools`."""
    return pool_models(config, Address(iteration, "pools"))["policy"]


def rolled_out_policy(config: TreadleConfig, iteration: int) -> str | None:
    """Return the model whose rollouts become rows in an iteration; None if rows are not made from rollouts."""
    if "sft_rows" not in config.flow.stages or row_source(config, Address(iteration, "sft_rows")) != "rollouts":
        return None
    return row_policy(config, iteration)


def rollout_model(config: TreadleConfig, address: Address) -> tuple[ModelSettings, tuple[Address, ...]]:
    """Return the model of `rollouts@<model>`, and the instance whose checkpoint it has because rows are made from it.

    The policy whose rollouts become rows has the weights that the iteration starts from, as in `pools`.
    """
    name = address.qualifier or ""
    policy = starting_policy(config, address.iteration)
    if policy is None or name != rolled_out_policy(config, address.iteration):
        return config.models[name], ()
    return with_weights(config.models[name], str(policy)), (policy,)


def row_inputs(config: TreadleConfig, address: Address) -> dict[str, tuple[Address, ...]]:
    """Return the inputs of an instance of `sft_rows`."""
    questions = {"questions": (Address(address.iteration, "questions"),)}
    if row_source(config, address) == "pools":
        return {"pools": (replace(address, stage="pools"),), **questions}
    rollouts = Address(address.iteration, "rollouts", row_policy(config, address.iteration))
    return {"rollouts": (rollouts,), "scores": (replace(rollouts, stage="scores"),), **questions}
