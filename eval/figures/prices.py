"""Compute the cost of a rollout from prices of tokens and fees of tools."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from treadle.core.config import Section

if TYPE_CHECKING:
    from treadle.eval.scored_rollout import ScoredRollout

Amount = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class TokenPrices(Section):
    """Prices of a model's tokens, in the currency of all prices of the configuration."""

    prompt_per_million: Amount
    """Price of a million prompt tokens."""
    completion_per_million: Amount
    """Price of a million sampled tokens."""


def rollout_cost(rollout: ScoredRollout, prices: TokenPrices | None, fees: Mapping[str, float]) -> float | None:
    """Return the cost of a rollout's tokens and of its executed calls, failed ones included.

    None if the model has no prices, or if the tokens of the rollout were not counted. `fees`: tool -> fee of one call.
    """
    if prices is None or not rollout.has_known_tokens:
        return None
    tokens = (
        rollout.prompt_tokens * prices.prompt_per_million + rollout.completion_tokens * prices.completion_per_million
    )
    return tokens / 1e6 + math.fsum(calls.executed * fees.get(calls.tool, 0.0) for calls in rollout.tools)
