"""Determine what the fine-tuning rows of an instance are made from, and by which model."""

from __future__ import annotations

from typing import Literal

from treadle.core.errors import ConfigError
from treadle.core.runs.address import Address
from treadle.datagen.conversion.settings import ConversionOptions
from treadle.datagen.pools.entry import pool_models
from treadle.datagen.sft_rows.settings import SftRowsOptions
from treadle.environments.registry import traits_of
from treadle.stages.plan import Plan

RowSource = Literal["pools", "rollouts", "conversion", "texts"]


def row_source(plan: Plan, address: Address) -> RowSource:
    """Return what the fine-tuning rows of an instance are made from.

    Raises ConfigError for pools of an environment whose tasks have no gold answers, and for rows from texts if
    `sft_rows.texts` names no file.
    """
    options = plan.options(address, SftRowsOptions)
    wanted = options.trajectories
    if wanted == "texts" and not options.texts:
        raise ConfigError(f"{address}: sft_rows.trajectories = texts, but there are none; add [[sft_rows.texts]]")
    if wanted is None and "conversion" in plan.stages:
        return "conversion"
    if wanted is None and options.texts:
        return "texts"
    if wanted in ("conversion", "texts"):
        return wanted
    without = [one.type for one in plan.environments().values() if not traits_of(one).has_answers]
    if wanted == "pools" and without:
        raise ConfigError(
            f"{address}: sft_rows.trajectories = pools, but there are no pools of {without[0]}, whose "
            "tasks have no gold answers; leave the key out, then rows are made from rollouts"
        )
    return wanted or ("rollouts" if without else "pools")


def rolled_out_policy(plan: Plan, iteration: int) -> str | None:
    """Return the model whose rollouts become rows, pairs or experience in an iteration, rewritten or not, or None."""
    if "preferences" in plan.stages or "experience" in plan.stages:
        return policy_of(plan, iteration)
    if "conversion" in plan.stages and not plan.options(Address(iteration, "conversion"), ConversionOptions).texts:
        return policy_of(plan, iteration)
    if "sft_rows" not in plan.stages or row_source(plan, Address(iteration, "sft_rows")) != "rollouts":
        return None
    return policy_of(plan, iteration)


def policy_of(plan: Plan, iteration: int) -> str:
    """Return the name of the model whose trajectories become rows: the policy of `pools`."""
    return pool_models(plan, Address(iteration, "pools"))["policy"]
