"""An estimate: what an instance is expected to use, role by role, and what that stands on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from treadle.core.llm.config import ModelSettings


@dataclass(frozen=True, slots=True)
class RoleEstimate:
    """What one role is expected to use."""

    role: str
    model: str
    calls: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None
    """In the currency of the prices; None where the model has none."""

    @classmethod
    def of_units(
        cls, role: str, name: str, model: ModelSettings | None, used: Mapping[str, float], num_units: int
    ) -> RoleEstimate:
        """From what one unit uses on average; `name`: of the model, whose settings give the prices."""
        prompt, completion = (round(used[kind] * num_units) for kind in ("prompt_tokens", "completion_tokens"))
        cost = model.cost(prompt, completion) if model is not None and model.is_priced else None
        return cls(role, name, round(used["calls"] * num_units), prompt, completion, cost)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What one instance is expected to use.

    Attributes:
        unit: question, or rollout.
        num_units: Those still to be made; None where it is not known, then `roles` are for 1,000 questions.
        counted: Where that number is from.
        basis: What the estimate stands on.
        assumptions: One per line; empty where it stands on measurements.
    """

    address: str
    unit: str
    num_units: int | None
    counted: str
    basis: str
    assumptions: list[str]
    roles: list[RoleEstimate]
    num_searches: int = 0
    """Of the web, at a provider that may take money for each; what is on record already is not asked for."""
    num_pages: int = 0
    """Fetched for them at most."""

    @property
    def num_tokens(self) -> int:
        """All of them."""
        return sum(role.prompt_tokens + role.completion_tokens for role in self.roles)

    @property
    def cost(self) -> float | None:
        """None where a model has no price."""
        costs = [role.cost for role in self.roles]
        return sum(cost for cost in costs if cost is not None) if None not in costs else None

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return {**asdict(self), "num_tokens": self.num_tokens, "cost": self.cost, "estimate": True}
