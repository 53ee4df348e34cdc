"""Settings of the environment `bfcl`."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from treadle.agent.dialects.base import Dialect
from treadle.agent.dialects.functions import FunctionsDialect
from treadle.environments.settings import EnvironmentSettings

Category = Literal["base", "miss_func", "miss_param", "long_context"]
_MOST_TURNS = 8 * 22
"""Most turns that the package lets a model take: 21 with calls and one without, for each of 8 messages of the user."""


class BfclSettings(EnvironmentSettings):
    """Multi-turn categories of the Berkeley Function-Calling Leaderboard, which `treadle env install bfcl` installs."""

    type: str = "bfcl"
    """Type of the environment."""
    categories: tuple[Category, ...] = ("base", "miss_func", "miss_param", "long_context")
    """Categories, 200 tasks each."""
    train_share: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of each category, from its start, that is the split `train`; the rest is `heldout`."""
    max_turns: int | None = Field(default=None, ge=1)
    """Most generation calls per rollout; none means the limit of `bfcl-eval`: 21 turns with calls for each message of
    the user."""

    @model_validator(mode="after")
    def _check_tools(self) -> Self:
        if self.tools:
            raise ValueError("the tools of bfcl are the functions of its tasks; remove environment.tools")
        return self

    @property
    def turn_dialect(self) -> Dialect:
        """See `EnvironmentSettings`."""
        return FunctionsDialect()

    def turn_limit(self, additional: int = 0) -> int:
        """See `EnvironmentSettings`."""
        return _MOST_TURNS if self.max_turns is None else self.max_turns
