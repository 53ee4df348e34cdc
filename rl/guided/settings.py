"""Define the settings of the stage `guided_rollouts`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from treadle.core.config import Revisable
from treadle.core.llm.config import ModelSettings, Sampling
from treadle.environments.rollouts.settings import RolloutOptions, RolloutsSettings
from treadle.environments.scorers.registry import AnyScorer
from treadle.rl.candidates.settings import CANDIDATE_SAMPLING


class GuidedOptions(RolloutOptions):
    """Options of rollouts of which each turn is the best of several candidates. See docs/behaviour/preferences.md."""

    role: ClassVar[str] = "policy"
    num_candidates: int = Field(default=16, ge=1)
    """Number of candidates per turn (N); with 1 the critic has no choice."""
    split: Revisable[Literal["train", "heldout"] | None] = "heldout"
    """Split of the tasks; none means both."""
    sampling: Sampling = CANDIDATE_SAMPLING
    """Sampling parameters of the candidates."""


class GuidedSettings(RolloutsSettings):
    """All settings that an instance of `guided_rollouts` reads; `model` is the policy."""

    critic_name: str
    """Name of the model whose settings serve the critic."""
    critic: ModelSettings
    """The critic."""
    hidden: bool = True
    """Whether the critic sees hidden information, as it did in its training."""
    hidden_chars: int = 16_000
    """Maximum number of characters of hidden information that the critic sees, as in its training."""
    is_mean: bool = True
    """Whether an advantage is divided by the candidate's number of tokens; false for a critic that was trained on sums
    of log-ratios."""
    reference_conditioning: Literal["none", "hidden_info"] = "none"
    """What the reference sees, as in the stage `advantages`."""
    scorers: dict[str, AnyScorer] = {}
    """Scorers that the tasks name, by name; see `Plan.scorers`."""
    options: GuidedOptions = GuidedOptions()
    """Number of candidates and of rollouts, selection of tasks, and sampling."""
