"""The budget of a stage, in tokens and money, and models that work within it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from treadle.core.errors import BudgetExceeded, ConfigError
from treadle.core.llm.config import ModelSettings, Sampling
from treadle.core.llm.pool import ModelPool
from treadle.core.llm.types import Completion, CompletionRequest

_REMEDY = "what is finished is kept: raise the budget and run again"


@dataclass(slots=True)
class TokenBudget:
    """Prompt and sampled tokens of all models of a stage, and what they cost; without a limit it only counts."""

    max_total_tokens: int | None
    max_cost: float | None = None
    """In the currency of the models' prices."""
    used_tokens: int = 0
    used_cost: float = 0.0
    num_shards: int = 1
    """Processes cannot see what others spend: each shard has an equal part, so that together they keep to the whole."""

    @property
    def is_limited(self) -> bool:
        """Whether there is anything to keep to, so that what earlier attempts used has to be counted."""
        return self.max_total_tokens is not None or self.max_cost is not None

    def check(self) -> None:
        """Raise BudgetExceeded where nothing is left."""
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
        """Raise ConfigError for a model whose cost cannot be told, where cost is limited."""
        if self.max_cost is not None and not model.is_priced:
            raise ConfigError(
                f"max_cost is set, but models.{name} has no prices: set its prompt_price_per_million and "
                "completion_price_per_million (0 for a model that costs nothing)"
            )

    def count(self, model: ModelSettings, prompt_tokens: int, completion_tokens: int) -> None:
        """Count tokens of a model."""
        self.used_tokens += prompt_tokens + completion_tokens
        self.used_cost += model.cost(prompt_tokens, completion_tokens)


@dataclass(frozen=True, slots=True)
class Meter:
    """A model with a budget in front of it; both methods raise BudgetExceeded and what the pool raises."""

    pool: ModelPool
    budget: TokenBudget

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        """One completion."""
        self.budget.check()
        answer = self.pool.complete(request, session=session, deadline=deadline)
        del request  # thousands wait at once: while the server thinks, nobody needs the ids
        return self._spend(await answer)

    async def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        sampling: Sampling,
        *,
        seed: int,
        session: str,
        deadline: float,
        stop: Sequence[str] = (),
    ) -> Completion:
        """One answer to messages that the server renders."""
        self.budget.check()
        answer = self.pool.chat(messages, sampling, seed=seed, session=session, deadline=deadline, stop=stop)
        return self._spend(await answer)

    def _spend(self, completion: Completion) -> Completion:
        self.budget.count(self.pool.settings, completion.prompt_tokens, completion.completion_tokens)
        return completion
