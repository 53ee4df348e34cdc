"""Define an estimate: the expected usage of an instance by role, and its basis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from treadle.core.llm.config import ModelSettings


@dataclass(frozen=True, slots=True)
class RoleEstimate:
    """Expected usage of one role."""

    role: str
    model: str
    calls: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None
    """Cost in the currency of the prices; None if the model has none."""

    @classmethod
    def of_units(
        cls, role: str, name: str, model: ModelSettings | None, used: Mapping[str, float], num_units: int
    ) -> RoleEstimate:
        """Multiply the mean usage of one unit by `num_units`; `name` is the model's name, `model` has its prices."""
        prompt, completion = (round(used[kind] * num_units) for kind in ("prompt_tokens", "completion_tokens"))
        cost = model.cost(prompt, completion) if model is not None and model.is_priced else None
        return cls(role, name, round(used["calls"] * num_units), prompt, completion, cost)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Expected usage of one instance.

    Attributes:
        unit: "question" or "rollout".
        num_units: Number still to be made; if None, it is unknown and `roles` are for 1,000 questions.
        num_units_source: Where that number is from.
        basis: Measurements or model that the estimate is based on.
        assumptions: One per line; empty if it is based on measurements.
    """

    address: str
    unit: str
    num_units: int | None
    num_units_source: str
    basis: str
    assumptions: list[str]
    roles: list[RoleEstimate]
    num_searches: int = 0
    """Web searches at a provider that may charge for each; those that a web record answers are not subtracted."""
    num_pages: int = 0
    """Maximum number of pages fetched for the web searches."""

    @property
    def num_tokens(self) -> int:
        """Prompt and sampled tokens of all roles."""
        return sum(role.prompt_tokens + role.completion_tokens for role in self.roles)

    @property
    def cost(self) -> float | None:
        """Cost of all roles; None if a model has no price."""
        costs = [role.cost for role in self.roles]
        return sum(cost for cost in costs if cost is not None) if None not in costs else None

    def as_dict(self) -> dict[str, Any]:
        """Return the estimate in a JSON-able form."""
        return {**asdict(self), "num_tokens": self.num_tokens, "cost": self.cost, "estimate": True}
