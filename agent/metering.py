"""The token budget of a stage, and models that work within it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from treadle.core.errors import BudgetExceeded
from treadle.core.llm.config import Sampling
from treadle.core.llm.pool import ModelPool
from treadle.core.llm.types import Completion, CompletionRequest


@dataclass(slots=True)
class TokenBudget:
    """Prompt and sampled tokens of all models of a stage; `max_total_tokens` None only counts."""

    max_total_tokens: int | None
    used_tokens: int = 0

    def check(self) -> None:
        """Raise BudgetExceeded where nothing is left."""
        if self.max_total_tokens is not None and self.used_tokens >= self.max_total_tokens:
            raise BudgetExceeded(
                f"{self.used_tokens} tokens are used of max_total_tokens = {self.max_total_tokens}; "
                "what is finished is kept: raise the budget and run again"
            )

    def count(self, num_tokens: int) -> None:
        """Count tokens that were used before."""
        self.used_tokens += num_tokens

    def spend(self, completion: Completion) -> Completion:
        """Count an answer and hand it on."""
        self.used_tokens += completion.prompt_tokens + completion.completion_tokens
        return completion


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
        return self.budget.spend(await answer)

    async def chat(
        self, messages: Sequence[Mapping[str, str]], sampling: Sampling, *, seed: int, session: str, deadline: float
    ) -> Completion:
        """One answer to messages that the server renders."""
        self.budget.check()
        return self.budget.spend(
            await self.pool.chat(messages, sampling, seed=seed, session=session, deadline=deadline)
        )
