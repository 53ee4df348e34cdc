"""Settings of models in roles other than the policy, as passed to stages."""

from __future__ import annotations

from pydantic import Field

from treadle.core.config import Section
from treadle.core.llm.config import ModelSettings, Sampling

AGENT = "agent"
"""Role of a model whose rollouts are evaluated; a model that is trained on its rollouts has the role `policy`."""


class JudgeSampling(Sampling):
    """Sampling parameters of the judge model."""

    temperature: float = Field(default=0.0, ge=0.0)
    """Softmax temperature; 0 means greedy."""
    max_tokens: int = Field(default=16, ge=1)
    """Most new tokens of one request."""


class RoleSettings(Section):
    """Model in a role, as passed to a stage."""

    name: str
    """Name of the model in the configuration."""
    model: ModelSettings
    """The model and its endpoints."""
    tokenizer_digest: str = ""
    """Required digest of the tokenizer; empty accepts any."""
    sampling: Sampling
    """Sampling parameters."""
