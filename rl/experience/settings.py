"""Define the settings of experience: how it is made, and how it is used in training."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from treadle.agent.role_settings import RoleSettings
from treadle.core.config import Operational, Section
from treadle.core.llm.config import Sampling
from treadle.retriever.config import EncoderSettings

PLACEHOLDER = "{experience}"
"""Text in a template that is replaced by the retrieved records."""
TEMPLATE = f"Experience from other tasks; use what fits:\n<experience>\n{PLACEHOLDER}\n</experience>"
WORKSPACE = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
"""Pattern of the names of workspaces."""


class ExperienceWriterSampling(Sampling):
    """Sampling parameters of the summariser."""

    max_tokens: int = Field(default=2048, ge=1)
    """Maximum number of new tokens per request."""


class ExperienceWriterRole(Section):
    """The model that writes experience from rollouts."""

    model: str | None = None
    """Name of its model under `models`; must be set to summarise rollouts."""
    sampling: ExperienceWriterSampling = ExperienceWriterSampling()
    """Sampling parameters."""


class ValidatorSampling(Sampling):
    """Sampling parameters of the validator."""

    temperature: float = Field(default=0.0, ge=0.0)
    """Softmax temperature; 0 means greedy."""
    max_tokens: int = Field(default=512, ge=1)
    """Maximum number of new tokens per request."""


class ValidatorRole(Section):
    """The model that checks experience against the rollouts that it comes from, before it is stored."""

    model: str | None = None
    """Name of its model under `models`; None means the summariser's."""
    sampling: ValidatorSampling = ValidatorSampling()
    """Sampling parameters."""


class AuthorOptions(Section):
    """Options of how rollouts become experience."""

    batch_size: int = Field(default=8, ge=1)
    """Maximum number of rollouts of a task in one request."""
    max_records: int = Field(default=3, ge=1)
    """Maximum number of records that are taken from one reply; further ones are dropped."""
    attempts: int = Field(default=2, ge=1, le=16)
    """Maximum number of requests until a reply can be read, for a summary and for the verdict on a record."""
    similarity: float = Field(default=0.8, gt=0.0, le=1.0)
    """Share of common words (Jaccard index) from which two records are duplicates, of which the earlier is kept."""
    max_message_chars: int = Field(default=1000, ge=50)
    """Maximum number of characters of one message of a rollout that the models are shown."""
    request_time_s: float = Field(default=600.0, gt=0.0)
    """Time limit in seconds for all requests about one batch, without delays caused by infrastructure."""


class ExperienceOptions(AuthorOptions):
    """Options of the pool of experience (arXiv 2511.10395). See docs/behaviour/experience.md."""

    summariser: ExperienceWriterRole = ExperienceWriterRole()
    """Model that writes experience."""
    validator: ValidatorRole = ValidatorRole()
    """Model that checks experience before it is stored."""
    encoder: EncoderSettings | None = None
    """Encoder by whose vectors records are found; None finds those that share words with the task (BM25)."""
    workspace: str = Field(default="default", pattern=WORKSPACE)
    """Name of the pool; records of other workspaces are never found."""
    initialise: bool = True
    """Whether the pool begins with experience from the policy's rollouts of tasks of the split `train`."""
    pool: Operational[tuple[Path, ...]] = ()
    """Files of an existing pool, such as `experience.jsonl` of a checkpoint or of `treadle experience serve`."""
    max_error_rate: float = Field(default=0.1, ge=0.0, le=1.0)
    """Maximum share of failed batches with which the stage may finish if failures are accepted."""
    max_concurrent: Operational[int] = Field(default=16, ge=1)
    """Maximum number of batches in progress at once."""
    pending_retries: Operational[int] = Field(default=2, ge=0)
    """Number of further passes over batches that infrastructure errors left pending."""
    pending_pause_s: Operational[float] = Field(default=5.0, ge=0.0)
    """Pause in seconds before the first further pass over pending batches; doubled before each later one."""
    max_total_tokens: Operational[int | None] = Field(default=None, ge=1)
    """Maximum number of prompt and completion tokens. Exceeding it stops the run, which can be resumed with a higher
    limit."""
    max_cost: Operational[float | None] = Field(default=None, gt=0.0)
    """Maximum cost of this stage, in the currency of the models' prices. Exceeding it stops the run, which can be
    resumed with a higher limit."""


class ExperienceSettings(Section):
    """All settings that an instance of the stage `experience` reads."""

    summariser: RoleSettings | None = None
    """The summariser; none if no rollouts are summarised."""
    validator: RoleSettings | None = None
    """The validator; none if no rollouts are summarised."""
    options: ExperienceOptions = ExperienceOptions()
    """Rules of the pool."""
    pool_digests: tuple[str, ...] = ()
    """Digests of the files of an existing pool, in their order."""
    seed: int = 0
    """Seed of the run; the seeds of all requests derive from it."""


class ExperienceUse(Section):
    """How a training uses experience: which rollouts see it, whether it stays in prompts, and when it grows."""

    rollout_mode: Literal["woexp", "all", "mixed"] = "woexp"
    """Rollouts of a group that see experience: none, all, or `rollout_ratio` of them. Validation never sees any."""
    rollout_ratio: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of the rollouts of each group with the mode `mixed`, rounded to whole rollouts, drawn by the seed."""
    keep_ratio: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the tasks whose training prompts keep the experience, drawn by the seed. From the others it is cut, so
    that the policy learns to act like this without it."""
    top_k: int = Field(default=3, ge=1)
    """Maximum number of records that a task gets."""
    template: str = TEMPLATE
    """Text around the records, which replace `{experience}`."""
    off_clip_high: float = Field(default=0.6, gt=0.0)
    """Upper clipping range, in place of `clip_high`, of rollouts whose experience was cut: a wider one lets tokens
    become likely that were rare without the experience."""
    initial: bool = True
    """Whether the pool begins with the result of the stage `experience`; otherwise it begins empty."""
    update_steps: int = Field(default=0, ge=0)
    """Steps between updates, in which the rollouts of a step become experience for the next ones, with the models of
    `[experience]`; 0 leaves the pool unchanged."""

    @property
    def shows(self) -> bool:
        """True if rollouts see experience."""
        return self.rollout_mode != "woexp"

    @property
    def is_used(self) -> bool:
        """True if a training has a pool."""
        return self.shows or self.update_steps > 0

    @field_validator("template")
    @classmethod
    def _check_template(cls, template: str) -> str:
        if template.count(PLACEHOLDER) != 1:
            raise ValueError(f"it has {PLACEHOLDER} {template.count(PLACEHOLDER)} times; put it in once")
        return template

    @model_validator(mode="after")
    def _check_pool(self) -> ExperienceUse:
        if self.shows and not self.initial and not self.update_steps:
            raise ValueError(
                "the pool would be empty for ever with initial = false and update_steps = 0; change one of them"
            )
        return self
