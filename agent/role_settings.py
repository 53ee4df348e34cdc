"""Models in roles beside the policy, as stages are given them."""

from __future__ import annotations

from pydantic import Field

from treadle.core.config import Section
from treadle.core.llm.config import ModelSettings, Sampling


class JudgeSampling(Sampling):
    """How the judge's words are sampled."""

    temperature: float = Field(default=0.0, ge=0.0)
    """Softmax temperature; 0 means greedy."""
    max_tokens: int = Field(default=16, ge=1)
    """Most new tokens of one request."""


class RoleSettings(Section):
    """A model in a role, as the stage is given it."""

    name: str
    """Its name in the configuration."""
    model: ModelSettings
    """The model and its endpoints."""
    tokenizer_digest: str = ""
    """Digest that the tokenizer must have; empty means that any will do."""
    sampling: Sampling
    """How it is sampled."""
