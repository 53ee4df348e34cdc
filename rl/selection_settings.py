"""Settings of the stage `selection`."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from treadle.agent.config import EnvironmentSettings
from treadle.core.config import Section

Domain = Literal["math", "qa", "choice"]


class SelectionOptions(Section):
    """Which questions are worth reinforcement learning: those whose rollouts still disagree."""

    max_questions: int = Field(default=8000, ge=1)
    """Most questions; whole fronts are taken in order, and the first that does not fit is thinned out by crowding."""
    min_rollouts: int = Field(default=4, ge=2)
    """A question with fewer usable rollouts is left out."""
    mixed_f1: float = Field(default=0.75, gt=0.0, le=1.0)
    """A question of domain qa is mixed if one of its rollouts has at least this F1 and another one less."""
    quotas: dict[Domain, Annotated[int, Field(ge=0)]] = {}
    """Most questions per domain, at most `max_questions` in all: each domain is then ranked by itself. Empty: all are
    ranked together."""
    exclude_previous: bool = False
    """Whether questions that an earlier phase trained on are left out."""

    @model_validator(mode="after")
    def _quotas_fit(self) -> Self:
        if (total := sum(self.quotas.values())) > self.max_questions:
            raise ValueError(
                f"quotas ask for {total:,} questions, more than max_questions = {self.max_questions:,}; "
                "lower them or raise max_questions"
            )
        if self.quotas and not total:
            raise ValueError("quotas leave room for no question; raise one of them")
        return self


class SelectionSettings(Section):
    """All that an instance of the stage reads."""

    options: SelectionOptions = SelectionOptions()
    """Which questions."""
    phase: int = Field(default=1, ge=1)
    """Phase of the curriculum that the rows are for."""
    environment: EnvironmentSettings = EnvironmentSettings()
    """What the rollouts were made in; its prompt becomes that of the rows."""
    seed: int = 0
    """The run's seed; it decides the order of the rows."""
