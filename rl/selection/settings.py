"""Define the settings of the stage `selection`."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from treadle.core.config import Section
from treadle.environments.mixture import MixedSettings
from treadle.rl.selection.methods.pareto import Pareto
from treadle.rl.selection.methods.registry import AnySelectionMethod


class SelectionOptions(Section):
    """Options of the selection, which keeps the questions whose rollouts still disagree."""

    method: AnySelectionMethod = Pareto()
    """Method that orders the questions which pass the filters; the first ones are selected. `"random"` is short for
    `{ type = "random" }`."""
    max_questions: int = Field(default=8000, ge=1)
    """Maximum number of questions."""
    min_rollouts: int = Field(default=4, ge=2)
    """Minimum number of usable rollouts; a question with fewer is left out."""
    mixed_f1: float = Field(default=0.75, gt=0.0, le=1.0)
    """F1 threshold for domain qa: a question is mixed if at least one of its rollouts reaches it and at least one
    does not. A question of a domain other than math, choice and qa is mixed if the scores of its rollouts differ."""
    quotas: dict[str, Annotated[int, Field(ge=0)]] = {}
    """Maximum number of questions per domain, at most `max_questions` in total; each domain is then ranked
    separately. Empty: all domains are ranked together."""
    exclude_previous: bool = False
    """Whether to leave out questions that an earlier phase trained on."""

    @model_validator(mode="after")
    def _check_quotas_fit(self) -> Self:
        if (total := sum(self.quotas.values())) > self.max_questions:
            raise ValueError(
                f"quotas ask for {total:,} questions, more than max_questions = {self.max_questions:,}; "
                "lower them or raise max_questions"
            )
        if self.quotas and not total:
            raise ValueError("all quotas are 0; raise one of them")
        return self


class SelectionSettings(MixedSettings):
    """All settings that an instance of the stage `selection` reads."""

    options: SelectionOptions = SelectionOptions()
    """Filters and limits of the selection."""
    phase: int = Field(default=1, ge=1)
    """Phase of the curriculum that the rows are for."""
    seed: int = 0
    """Seed of the run; it decides the order of the rows, and what a method takes at random."""
