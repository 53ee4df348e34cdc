"""Define the settings of the stage `candidates`."""

from __future__ import annotations

from pydantic import Field

from treadle.core.llm.config import ModelSettings, Sampling
from treadle.environments.mixture import MixedSettings
from treadle.rl.preferences.settings import TurnRequests

CANDIDATE_SAMPLING = Sampling(temperature=1.0, top_p=1.0, max_tokens=1024)


class CandidatesOptions(TurnRequests):
    """Options of how alternatives for the turns of rollouts are sampled. See docs/behaviour/preferences.md."""

    num_candidates: int = Field(default=16, ge=2)
    """Number of alternatives per turn (N)."""
    data_fraction: float = Field(default=1.0, gt=0.0, le=1.0)
    """Share of the rollouts of the split `train` whose turns are used, drawn by the seed of the run."""
    sampling: Sampling = CANDIDATE_SAMPLING
    """Sampling parameters."""


class CandidatesSettings(MixedSettings):
    """All settings that an instance of the stage `candidates` reads."""

    model_name: str
    """Name of the policy in the configuration."""
    model: ModelSettings
    """The policy, with the weights that the rollouts were sampled from."""
    tokenizer_digest: str = ""
    """Required digest of the policy's tokenizer; empty accepts any."""
    options: CandidatesOptions = CandidatesOptions()
    """Number, selection and sampling."""
    seed: int = 0
    """Seed of the run; the seeds of all candidates derive from it."""
