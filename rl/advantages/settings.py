"""Define the settings of the stage `advantages`."""

from __future__ import annotations

from typing import Literal

from treadle.core.llm.config import ModelSettings
from treadle.environments.mixture import MixedSettings
from treadle.rl.preferences.settings import TurnRequests


class AdvantagesOptions(TurnRequests):
    """Options of how a critic scores candidates. See docs/behaviour/preferences.md."""

    critic: str | None = None
    """Name under `models` of the model whose settings serve the critic, such as its devices; none means the policy's.
    Its weights are always those of `dpo@critic`."""
    reference_conditioning: Literal["none", "hidden_info"] = "none"
    """What the reference sees: the prompt of the policy (`none`, as in the released code of SWEET-RL), or that of the
    critic with its hidden information, as in the paper."""
    best_of: bool = False
    """Whether the critic also chooses among the rollouts of each held-out task. The mean reward of its choices, next to
    those of all and of the best, shows how good the critic is; it is no policy, because it sees hidden information."""


class AdvantagesSettings(MixedSettings):
    """All settings that an instance of the stage `advantages` reads."""

    critic_name: str
    """Name of the model whose settings serve the critic."""
    critic: ModelSettings
    """The critic."""
    reference_name: str
    """Name of the reference."""
    reference: ModelSettings
    """The policy that the candidates were sampled from."""
    tokenizer_digest: str = ""
    """Required digest of the tokenizer; empty accepts any."""
    hidden: bool = True
    """Whether the critic sees hidden information, as it did in its training."""
    hidden_chars: int = 16_000
    """Maximum number of characters of hidden information that the critic sees, as in its training."""
    is_mean: bool = True
    """Whether an advantage is divided by the candidate's number of tokens; false for a critic that was trained on sums
    of log-ratios."""
    options: AdvantagesOptions = AdvantagesOptions()
    """Limits of the requests, and conditioning."""
