"""Define the instances of the stage `dpo`, which are the critic and policies, and their options."""

from __future__ import annotations

from treadle.core.runs.address import Address
from treadle.rl.dpo.config import DpoOptions
from treadle.rl.preferences.aggregates import Aggregate
from treadle.stages.plan import Plan

CRITIC = "critic"
"""Qualifier of the instance that trains the critic; all others train policies."""


def dpo_options(plan: Plan, address: Address) -> DpoOptions:
    """Return the options of an instance with the aggregate filled in."""
    options = plan.options(address, DpoOptions)
    default: Aggregate = "token_mean" if address.qualifier == CRITIC else "sum"
    return options.model_copy(update={"aggregate": options.aggregate or default}).effective()


def aggregate_of(plan: Plan, address: Address) -> Aggregate:
    """Return how an instance aggregates the log-ratios of a side."""
    aggregate = dpo_options(plan, address).aggregate
    assert aggregate is not None
    return aggregate
