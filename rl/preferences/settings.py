"""Define the settings of the stage `preferences`, and limits shared by all stages that ask models about turns."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from treadle.core.config import Operational, Section
from treadle.environments.mixture import MixedSettings

PairKind = Literal["trajectory", "dialogue", "turn"]
"""Kind of the pairs of an instance, which is its qualifier: trajectories for a critic, trajectories without hidden
information for a policy, or candidates of turns."""


class PreferencesOptions(Section):
    """Options that decide which pairs are made. See docs/behaviour/preferences.md."""

    hidden_information: bool = True
    """Whether the critic sees what the environment hides from the policy; false is the ablation without it."""
    hidden_chars: int = Field(default=16_000, ge=200)
    """Longest statement of what the environment hides, in characters; a longer one, such as that of a long page, loses
    its middle, so that it leaves room for the dialogue in the critic's window."""
    rule: Literal["best", "gap"] = "best"
    """Pairs of trajectories. `best`: the first best one of a task with each worse one, if the best reward is at least
    `min_best`. `gap`: all pairs whose rewards differ by at least `min_gap`."""
    min_best: float = 1.0
    """Reward that the best trajectory of a task must reach with the rule `best`."""
    min_gap: float = Field(default=0.1, ge=0.0)
    """Smallest difference of rewards of a pair with the rule `gap`; equal rewards never make a pair."""
    pairs_per_turn: int = Field(default=4, ge=1)
    """Number of draws of a pair of candidates for each turn; a pair that is drawn twice is written once."""
    top_k: int | None = Field(default=None, ge=1)
    """Number of best candidates of a turn, and of worst ones, that pairs are drawn from; at most half of all candidates
    each. None: half each. 1: only the best is paired with the worst."""


class TurnRequests(Section):
    """Limits of a stage that asks models about the turns of rollouts."""

    turn_time_s: float = Field(default=1200.0, gt=0)
    """Time limit in seconds for all requests about one turn, without delays caused by infrastructure."""
    max_error_rate: float = Field(default=0.1, ge=0.0, le=1.0)
    """Maximum share of failed turns with which the stage may finish if failures are accepted."""
    max_concurrent: Operational[int] = Field(default=16, ge=1)
    """Maximum number of turns in progress at once; all requests about a turn are sent together."""
    pending_retries: Operational[int] = Field(default=2, ge=0)
    """Number of further passes over turns that infrastructure errors left pending."""
    pending_pause_s: Operational[float] = Field(default=5.0, ge=0.0)
    """Pause in seconds before the first further pass over pending turns; doubled before each later one."""
    max_total_tokens: Operational[int | None] = Field(default=None, ge=1)
    """Maximum number of prompt and completion tokens. Exceeding it stops the run, which can be resumed with a higher
    limit."""
    max_cost: Operational[float | None] = Field(default=None, gt=0.0)
    """Maximum cost of this stage, in the currency of the models' prices. Exceeding it stops the run, which can be
    resumed with a higher limit."""


class PreferencesSettings(MixedSettings):
    """All settings that an instance of the stage `preferences` reads."""

    kind: PairKind
    """Kind of the pairs."""
    options: PreferencesOptions = PreferencesOptions()
    """Rules for pairs."""
    tokenizer: Operational[Path | None] = None
    """Tokenizer of the rollouts; none means that of the policy's checkpoint. Pairs of turns need none."""
    tokenizer_digest: str = ""
    """Required digest of the tokenizer."""
    seed: int = 0
    """Seed of the run; draws of pairs derive from it."""
