"""The budget of a stage: tokens and money, and what cannot be priced is refused where money is limited."""

from __future__ import annotations

import pytest

from treadle.agent.metering import TokenBudget
from treadle.core.errors import BudgetExceeded, ConfigError
from treadle.core.llm.config import ModelSettings

CHEAP = ModelSettings(model="m", prompt_price_per_million=1.0, completion_price_per_million=2.0)
UNPRICED = ModelSettings(model="m", prompt_price_per_million=1.0)


def test_cost_is_counted_by_the_prices_of_each_model() -> None:
    budget = TokenBudget(None, max_cost=5.0)
    budget.count(CHEAP, 1_000_000, 1_000_000)
    budget.count(UNPRICED, 1_000_000, 7)
    assert (budget.used_cost, budget.used_tokens) == (4.0, 3_000_007)
    budget.check()
    budget.count(CHEAP, 1_000_000, 0)
    with pytest.raises(BudgetExceeded, match="^5 are spent of max_cost = 5; finished work is kept"):
        budget.check()


def test_model_without_a_price_is_refused_only_with_a_cost_limit() -> None:
    TokenBudget(10).check_price("m", UNPRICED)
    TokenBudget(None, max_cost=1.0).check_price("m", CHEAP)
    with pytest.raises(ConfigError, match="models.m has no prices: .*completion_price_per_million"):
        TokenBudget(None, max_cost=1.0).check_price("m", UNPRICED)
