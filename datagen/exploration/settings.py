"""Define the settings of the stage `exploration`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Self

from pydantic import Field, model_validator

from treadle.agent.role_settings import RoleSettings
from treadle.core.config import Operational, Section
from treadle.core.llm.config import Sampling
from treadle.datagen.exploration.filters import AnyFilter, LexicalFilter
from treadle.datagen.exploration.profile import Profile
from treadle.datagen.exploration.strategies import AnyStrategy, CuriousStrategy
from treadle.environments.mixture import MixedSettings
from treadle.environments.scorers.registry import AnyScorer

BY_ENVIRONMENT = "env"
"""Grader that is the environment itself."""
ROLES = ("explorer", "summariser", "solver")


class ExplorerSampling(Sampling):
    """Sampling parameters of the agent that explores, as in arXiv 2511.10395."""

    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Share of the probability mass to sample from; 1 means all."""
    top_k: int = Field(default=100, ge=-1)
    """Number of most likely tokens to sample from; -1 means all."""
    max_tokens: int = Field(default=8192, ge=1)
    """Most new tokens of one request."""


class SummariserSampling(Sampling):
    """Sampling parameters of the model that makes tasks, as in arXiv 2511.10395."""

    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Share of the probability mass to sample from; 1 means all."""
    max_tokens: int = Field(default=8192, ge=1)
    """Most new tokens of one request."""


class ExplorerRole(Section):
    """The agent that explores the state of a task without its text."""

    model: str | None = None
    """Name of its model under `models`; must be set."""
    sampling: ExplorerSampling = ExplorerSampling()
    """Sampling parameters."""


class SummariserRole(Section):
    """The model that makes tasks of explorations."""

    model: str | None = None
    """Name of its model under `models`; must be set."""
    sampling: SummariserSampling = SummariserSampling()
    """Sampling parameters."""


class SolverRole(Section):
    """The agent that tries whether a new task can be solved; another model than the summariser."""

    model: str | None = None
    """Name of its model under `models`; must be set."""
    sampling: Sampling = Sampling()
    """Sampling parameters."""


class ExplorationRoles(Section):
    """Models of the three roles."""

    explorer: ExplorerRole = ExplorerRole()
    """Agent that explores."""
    summariser: SummariserRole = SummariserRole()
    """Model that makes tasks of what was found."""
    solver: SolverRole = SolverRole()
    """Agent that replays the tasks, and the seed tasks by which a grader is measured."""


class ExplorationOptions(Section):
    """Options of how tasks are made by exploring the states of seed tasks (arXiv 2511.10395)."""

    split: ClassVar[str] = "train"
    """Split of the seed tasks; held-out tasks are never explored."""

    roles: ExplorationRoles = ExplorationRoles()
    """Models of the roles."""
    explorations_per_task: int = Field(default=1, ge=1)
    """Number of explorations of a seed task, one after the other; later ones are told the tasks made before."""
    strategy: AnyStrategy = CuriousStrategy()
    """How an agent explores."""
    filters: tuple[AnyFilter, ...] = (LexicalFilter(),)
    """What drops tasks before they are replayed, one after the other."""
    grader: str = BY_ENVIRONMENT
    """Grader of rollouts of the new tasks, here and in every stage that scores them: `env` for the environment,
    if it scores new tasks by their reference actions, or an entry of the table `scorers` whose type is a grader such as
    `llm-binary-gt`."""
    calibration_tasks: int = Field(default=20, ge=0)
    """Number of seed tasks on which a grader is compared with the environment's score of rollouts of the solver."""
    min_agreement: float = Field(default=0.7, ge=0.0, le=1.0)
    """Minimum share of these rollouts on which grader and environment agree, and minimum mean of two such shares: among
    the rollouts that the environment scored right, and among those that it scored wrong. The stage fails before tasks
    are replayed if either is lower, or if the environment scored all rollouts the same. 0 disables the check."""
    profiles: Operational[dict[str, Path]] = {}
    """TOML or JSON file that describes an environment, by its name (`default` is `[environment]`); default: the one
    shipped for its type. The fingerprint contains the content, not the path."""
    prompts: Operational[Path | None] = None
    """Folder with files that replace the prompts of the same names; the fingerprint contains their texts, not the
    path."""
    attempts: int = Field(default=6, ge=1, le=16)
    """Most requests to the summariser about one exploration, until a reply can be read."""
    step_chars: int = Field(default=2000, ge=80)
    """Most characters of an action or an observation that the summariser is shown."""
    summary_time_s: float = Field(default=600.0, gt=0)
    """Time limit in seconds for the summary of one exploration, without delays caused by infrastructure."""
    max_questions: int | None = Field(default=None, ge=1)
    """Most seed tasks, taken from the start of their order; None means all."""
    max_questions_per_dataset: int | None = Field(default=None, ge=1)
    """Most seed tasks of each data set, taken from the start of their order; None means all."""
    datasets: tuple[str, ...] = ()
    """Data sets to explore; empty means all."""
    max_error_rate: float = Field(default=0.1, ge=0.0, le=1.0)
    """Largest share of failed jobs with which the stage may end, if failures are accepted at all."""
    max_concurrent: Operational[int] = Field(default=8, ge=1)
    """Seed tasks, or tasks to replay, in progress at once."""
    wall_limit_s: Operational[float] = Field(default=1800.0, gt=0.0)
    """Seconds of work after which a rollout that ignores `environment.rollout_time_s` is cancelled and its job counts
    as failed."""
    pending_retries: Operational[int] = Field(default=2, ge=0)
    """Further passes over jobs that failed because of infrastructure."""
    pending_pause_s: Operational[float] = Field(default=5.0, ge=0.0)
    """Seconds before the first further pass over these jobs; doubled for each later one."""
    max_total_tokens: Operational[int | None] = Field(default=None, ge=1)
    """Most prompt and sampled tokens of all roles. Past it the run stops; it can be resumed with a larger limit."""
    max_cost: Operational[float | None] = Field(default=None, gt=0.0)
    """Most money spent by this stage, in the currency of the models' prices. Past it the run stops; it can be resumed
    with a larger limit."""

    @model_validator(mode="after")
    def _check_calibration(self) -> Self:
        if self.grader != BY_ENVIRONMENT and self.min_agreement and not self.calibration_tasks:
            raise ValueError(
                f"min_agreement = {self.min_agreement:g} cannot be checked with calibration_tasks = 0; raise it, or "
                "set min_agreement = 0 to train on the tasks of a grader that was not compared"
            )
        return self

    def named_scorers(self) -> Iterator[tuple[str, str]]:
        """Yield the key that names a scorer, and the name, unless the environment is the grader."""
        if self.grader != BY_ENVIRONMENT:
            yield "exploration.grader", self.grader


class ExplorationSettings(MixedSettings):
    """All settings that an instance of the stage reads."""

    roles: dict[str, RoleSettings]
    """Settings of explorer, summariser and solver."""
    environment_roles: dict[str, RoleSettings] = {}
    """Models that episodes ask, by role."""
    summarizer: RoleSettings | None = None
    """Model that `environment.search.summarizer` names."""
    options: ExplorationOptions = ExplorationOptions()
    """Options of the exploration."""
    grader: AnyScorer | None = None
    """Grader that `options.grader` names; None for the environment."""
    scorers: dict[str, AnyScorer] = {}
    """User-defined scorers that the questions name; they score the seed tasks that a grader is compared on."""
    profiles: dict[str, Profile] = {}
    """Descriptions of the environments for models, by name."""
    prompt_digests: dict[str, str] = {}
    """Prompt -> digest of its texts."""
    seed: int = 0
    """Seed of the run; every other seed derives from it."""
