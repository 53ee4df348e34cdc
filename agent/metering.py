"""Limit what a stage spends on models, in tokens and in money."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treadle.core.errors import BudgetExceeded, ConfigError
from treadle.core.llm.config import ModelSettings, Sampling
from treadle.core.llm.pool import ModelPool
from treadle.core.llm.types import Completion, CompletionRequest

_REMEDY = "finished work is kept; raise the limit and run again"


@dataclass(slots=True)
class TokenBudget:
    """Budget of all models of a stage: prompt and sampled tokens, and their cost. Without a limit it only counts."""

    max_total_tokens: int | None
    max_cost: float | None = None
    """Limit in the currency of the models' prices; None for no limit."""
    used_tokens: int = 0
    used_cost: float = 0.0
    sampled_tokens: int = 0
    """Tokens that models sampled in this attempt."""
    num_shards: int = 1
    """Number of shards. Processes do not see each other's spending, so each shard gets an equal part of the limits."""

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit, so that the usage of earlier attempts has to be counted too."""
        return self.max_total_tokens is not None or self.max_cost is not None

    def check(self) -> None:
        """Raise BudgetExceeded if the budget is used up."""
        part = f" for each of {self.num_shards} shards" if self.num_shards > 1 else ""
        if self.max_total_tokens is not None and self.used_tokens * self.num_shards >= self.max_total_tokens:
            most = f"{self.max_total_tokens // self.num_shards}{part}, by " if part else ""
            raise BudgetExceeded(
                f"{self.used_tokens} tokens are used of {most}max_total_tokens = {self.max_total_tokens}; {_REMEDY}"
            )
        if self.max_cost is not None and self.used_cost * self.num_shards >= self.max_cost:
            most = f"{self.max_cost / self.num_shards:.4g}{part}, by " if part else ""
            raise BudgetExceeded(f"{self.used_cost:.4g} are spent of {most}max_cost = {self.max_cost:g}; {_REMEDY}")

    def check_price(self, name: str, model: ModelSettings) -> None:
        """Raise ConfigError for a model without prices if cost is limited."""
        if self.max_cost is not None and not model.is_priced:
            raise ConfigError(
                f"max_cost is set, but models.{name} has no prices: set its prompt_price_per_million and "
                "completion_price_per_million (0 for a model that costs nothing)"
            )

    def count(self, model: ModelSettings, prompt_tokens: int, completion_tokens: int) -> None:
        """Add tokens of a model, and their cost, to the used amounts."""
        self.used_tokens += prompt_tokens + completion_tokens
        self.used_cost += model.cost(prompt_tokens, completion_tokens)


@dataclass(frozen=True, slots=True)
class Meter:
    """Model pool with a budget check before each request.

    Both methods raise BudgetExceeded and the errors of the pool.
    """

    pool: ModelPool
    budget: TokenBudget

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        """Return one completion."""
        self.budget.check()
        answer = self.pool.complete(request, session=session, deadline=deadline)
        del request  # thousands of requests wait at once: free the ids while the server generates
        return self._spend(await answer)

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling: Sampling,
        *,
        seed: int,
        session: str,
        deadline: float,
        stop: Sequence[str] = (),
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Completion:
        """Return one answer to messages that the server renders."""
        self.budget.check()
        answer = self.pool.chat(
            messages, sampling, seed=seed, session=session, deadline=deadline, stop=stop, tools=tools
        )
        return self._spend(await answer)

    def _spend(self, completion: Completion) -> Completion:
        self.budget.sampled_tokens += completion.completion_tokens
        self.budget.count(self.pool.settings, completion.prompt_tokens, completion.completion_tokens)
        return completion
