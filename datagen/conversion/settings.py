"""Define the settings of the stage `conversion`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from treadle.agent.contract import DEFAULT_ENVIRONMENT
from treadle.agent.role_settings import RoleSettings
from treadle.core.config import Operational, Section
from treadle.core.llm.config import Sampling
from treadle.core.runs.shards import MAX_SHARDS
from treadle.datagen.texts.settings import TextSource
from treadle.environments.mixture import MixedSettings
from treadle.environments.question.settings import QuestionSettings
from treadle.environments.registry import AnyEnvironment


class TeacherSampling(Sampling):
    """Sampling parameters of the teacher, as in arXiv 2510.25320."""

    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Share of the probability mass to sample from; 1 means all."""
    max_tokens: int = Field(default=8192, ge=1)
    """Maximum number of new tokens per request."""


class TeacherRole(Section):
    """The model that rewrites trajectories."""

    model: str | None = None
    """Name of its model under `models`; must be set."""
    sampling: TeacherSampling = TeacherSampling()
    """Sampling parameters."""


class ConversionOptions(Section):
    """Options of how sequential trajectories are rewritten as plans of parallel calls (arXiv 2510.25320)."""

    teacher: TeacherRole = TeacherRole()
    """Model that rewrites."""
    environment: str = DEFAULT_ENVIRONMENT
    """Environment whose prompt and tags the rewrites get, such as `parallel` for `[environments.parallel]`; its dialect
    must have plans. Tasks need not belong to it."""
    texts: tuple[TextSource, ...] = ()
    """Files of whole trajectories to rewrite; none means right rollouts of the policy."""
    attempts: int = Field(default=2, ge=1, le=16)
    """Maximum number of rewrites of a trajectory that the teacher is asked for until one follows all rules."""
    min_searches: int = Field(default=3, ge=1)
    """Minimum number of queries of a rewrite. A trajectory with fewer results is not sent to the teacher."""
    max_tokens: int | None = Field(default=2000, ge=1)
    """Maximum number of tokens of a rewrite, without its prompt; None for no limit."""
    parallel_share: float | None = Field(default=0.6, gt=0.0, lt=1.0)
    """Share of parallel rewrites: those with several queries in one batch. If parallel or sequential rewrites exceed
    their share, as many of them as needed are left out; if there are only rewrites of one kind, all are kept. None
    keeps all."""
    tokenizer: Operational[Path | None] = None
    """Folder with the tokenizer that counts tokens, or `embedded`; None means that of `sft_rows`, then the policy's.
    Results depend on its digest, not its path."""
    prompts: Operational[Path | None] = None
    """Folder with files that replace the prompts of the same names; the fingerprint contains their texts, not the
    path."""
    rewrite_time_s: float = Field(default=600.0, gt=0)
    """Time limit in seconds for all rewrites of one trajectory, without delays caused by infrastructure."""
    max_error_rate: float = Field(default=0.1, ge=0.0, le=1.0)
    """Maximum share of failed trajectories with which the stage may finish if failures are accepted."""
    max_concurrent: Operational[int] = Field(default=32, ge=1)
    """Maximum number of trajectories in progress at once."""
    pending_retries: Operational[int] = Field(default=2, ge=0)
    """Number of further passes over trajectories that infrastructure errors left pending."""
    pending_pause_s: Operational[float] = Field(default=5.0, ge=0.0)
    """Pause in seconds before the first further pass over pending trajectories; doubled for each later one."""
    max_total_tokens: Operational[int | None] = Field(default=None, ge=1)
    """Maximum number of prompt and completion tokens of the teacher. Exceeding it stops the run, which can be resumed
    with a higher limit."""
    max_cost: Operational[float | None] = Field(default=None, gt=0.0)
    """Maximum cost of this stage, in the currency of the models' prices. Exceeding it stops the run, which can be
    resumed with a higher limit."""
    shards: Operational[int] = Field(default=1, ge=1, le=MAX_SHARDS)
    """Number of shards into which the work is divided at the start, so that several processes can share it (`treadle
    work`)."""


class ConversionSettings(MixedSettings):
    """All settings that an instance of the stage reads."""

    teacher: RoleSettings
    """Settings of the teacher."""
    options: ConversionOptions = ConversionOptions()
    """Options of the conversion."""
    target: AnyEnvironment = QuestionSettings()
    """Environment whose prompt and tags the rewrites get."""
    prompt_digests: dict[str, str] = {}
    """Prompt -> digest of its texts."""
    tokenizer: Operational[Path | None] = None
    """Folder of the tokenizer that counts tokens, or `embedded`; None without one."""
    tokenizer_digest: str = ""
    """Required digest of the tokenizer; empty accepts any."""
    seed: int = 0
    """Seed of the run; every other seed derives from it."""
