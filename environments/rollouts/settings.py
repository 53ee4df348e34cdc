"""Settings of the stage `rollouts`, and the selection of its questions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, Self

from pydantic import Field

from treadle.agent.contract import HIDDEN_COLUMNS, TASK_COLUMNS
from treadle.agent.role_settings import AGENT, RoleSettings
from treadle.core.config import Operational, Revisable, Section
from treadle.core.llm.config import ModelSettings, Sampling
from treadle.core.runs.shards import MAX_SHARDS
from treadle.core.runs.stage import Rows
from treadle.environments.mixture import MixedSettings, find_environment
from treadle.environments.settings import EnvironmentSettings


class RolloutOptions(Section):
    """Number of trajectories, selection of questions, and sampling."""

    role: ClassVar[str] = AGENT
    """Role of the model; see `treadle.agent.model_sessions.check_trained`."""
    samples_per_question: Revisable[int] = Field(default=1, ge=1)
    """Trajectories per question (K)."""
    max_questions: Revisable[int | None] = Field(default=None, ge=1)
    """Most questions, taken from the start of their order; none means all."""
    max_questions_per_dataset: Revisable[int | None] = Field(default=None, ge=1)
    """Most questions of each data set, taken from the start of their order; none means all."""
    datasets: Revisable[tuple[str, ...]] = ()
    """Data sets to answer; empty means all."""
    split: Revisable[Literal["train", "heldout"] | None] = None
    """Split of the questions to answer; none means both."""
    sampling: Sampling = Sampling()
    """Sampling parameters of the turns."""
    max_error_rate: float = Field(default=0.1, ge=0.0, le=1.0)
    """Largest share of failed rollouts with which the stage may end, if failures are accepted at all."""
    max_concurrent: Operational[int] = Field(default=64, ge=1)
    """Rollouts in progress at once."""
    pending_retries: Operational[int] = Field(default=2, ge=0)
    """Further passes over rollouts that failed because of infrastructure: each attempt has a new episode, and reuses
    the model's answers of the attempt before."""
    wall_limit_s: Operational[float] = Field(default=1800.0, gt=0.0)
    """Seconds of work after which a rollout that ignores `environment.rollout_time_s`, because its environment hangs,
    is cancelled and counts as failed; at least a minute more than that limit."""
    pending_pause_s: Operational[float] = Field(default=5.0, ge=0.0)
    """Seconds before the first pass of `pending_retries`; doubled for each further one."""
    max_total_tokens: Operational[int | None] = Field(default=None, ge=1)
    """Most prompt and sampled tokens of this stage. Past it the run stops; it can be resumed with a larger limit."""
    max_cost: Operational[float | None] = Field(default=None, gt=0.0)
    """Most money spent by this stage, in the currency of the models' prices. Past it the run stops; it can be resumed
    with a larger limit."""
    shards: Operational[int] = Field(default=1, ge=1, le=MAX_SHARDS)
    """Shards into which the work is divided when the stage starts, so that several processes can share it (`treadle
    work`)."""


class RolloutsSettings(MixedSettings):
    """All settings that an instance of the stage reads."""

    model_name: str
    """Name of the model in the configuration; stored in the rows."""
    model: ModelSettings
    """The model and its endpoints."""
    tokenizer_digest: str = ""
    """Required digest of the tokenizer; empty accepts any."""
    summarizer: ModelSettings | None = None
    """Model that `environment.search.summarizer` names."""
    summarizer_tokenizer_digest: str = ""
    """Like `tokenizer_digest`, for the summarizer."""
    roles: dict[str, RoleSettings] = {}
    """Models that episodes ask, by role."""
    options: RolloutOptions = RolloutOptions()
    """Number of trajectories, selection and sampling."""
    seed: int = 0
    """Seed of the run; the seeds of all rollouts and turns derive from it."""

    def alone(self, name: str) -> Self:
        """Return the settings of a run with only this environment, without models that the environment does not ask."""
        environment = self.named_environments()[name]
        update: dict[str, Any] = {"environment": environment, "environments": {}}
        update["roles"] = {role: one for role, one in self.roles.items() if role in environment.role_models}
        if environment.summarizer is None:
            update |= {"summarizer": None, "summarizer_tokenizer_digest": ""}
        return self.model_copy(update=update)


class QuestionSelection(Protocol):
    """Keys of a stage's section that select questions; see `RolloutOptions`."""

    @property
    def max_questions(self) -> int | None:
        """See `RolloutOptions`."""
        ...

    @property
    def max_questions_per_dataset(self) -> int | None:
        """See `RolloutOptions`."""
        ...

    @property
    def datasets(self) -> tuple[str, ...]:
        """See `RolloutOptions`."""
        ...

    @property
    def split(self) -> str | None:
        """See `RolloutOptions`."""
        ...


ASKED_COLUMNS = (*TASK_COLUMNS, "split")
"""Columns of a question without its gold answers."""


JOB_COLUMNS = (*ASKED_COLUMNS, "source_file", "source_row")
"""`ASKED_COLUMNS` and the source of the question, which distinguishes an edited question from a new one."""


def job_columns(*, reads_payload: bool) -> tuple[str, ...]:
    """Return the columns of a job's question: hidden ones only if episodes read them."""
    return (*JOB_COLUMNS, *HIDDEN_COLUMNS) if reads_payload else JOB_COLUMNS


def selected_questions(
    options: QuestionSelection, tables: Sequence[Rows], columns: Sequence[str] = ASKED_COLUMNS
) -> Iterator[Mapping[str, Any]]:
    """Yield the given columns of the selected questions; the columns must include `dataset` and `split`."""
    per_dataset: Counter[str] = Counter()
    number = 0
    for table in tables:
        for row in table.rows(columns):
            if options.datasets and row["dataset"] not in options.datasets:
                continue
            if options.split is not None and row["split"] != options.split:
                continue
            per_dataset[row["dataset"]] += 1
            if (most := options.max_questions_per_dataset) is not None and per_dataset[row["dataset"]] > most:
                continue
            number += 1
            if options.max_questions is not None and number > options.max_questions:
                return
            yield row


def selected_environments(
    settings: MixedSettings, options: QuestionSelection, tables: Sequence[Rows]
) -> dict[str, EnvironmentSettings]:
    """Return the environments of the selected questions, by name.

    Raises DataError for a question of an environment that the settings do not have.
    """
    names = {row["environment"] for row in selected_questions(options, tables, ("dataset", "split", "environment"))}
    known = settings.named_environments()
    return {name: find_environment(known, name) for name in sorted(names)}
