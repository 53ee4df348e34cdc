"""Settings of the stage `rollouts`, and which questions they select."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol

from pydantic import Field

from treadle.agent.config import EnvironmentSettings
from treadle.agent.environment import QUESTION_COLUMNS
from treadle.agent.opening import AGENT
from treadle.core.config import Operational, Section
from treadle.core.llm.config import ModelSettings, Sampling
from treadle.core.shards import MAX_SHARDS
from treadle.core.stage import Rows


class RolloutOptions(Section):
    """How many trajectories of which questions, and how they are sampled."""

    role: ClassVar[str] = AGENT
    """Role of the model that makes them; see `treadle.agent.opening.check_api`."""
    samples_per_question: int = Field(default=1, ge=1)
    """K: trajectories per question."""
    max_questions: int | None = Field(default=None, ge=1)
    """Most questions, the first ones in their order; none means all."""
    max_questions_per_dataset: int | None = Field(default=None, ge=1)
    """The same for each data set."""
    datasets: tuple[str, ...] = ()
    """Data sets to answer; empty means all."""
    split: Literal["train", "heldout"] | None = None
    """Part of the questions to answer; none means both."""
    sampling: Sampling = Sampling()
    """How turns are sampled."""
    max_error_rate: float = Field(default=0.1, ge=0.0, le=1.0)
    """Largest share of failed rollouts with which the stage may end, where failures are accepted at all."""
    max_concurrent: Operational[int] = Field(default=64, ge=1)
    """Rollouts in progress at once."""
    owed_retries: Operational[int] = Field(default=2, ge=0)
    """Further passes over rollouts that infrastructure kept from finishing."""
    owed_pause_s: Operational[float] = Field(default=5.0, ge=0.0)
    """Pause before the first such pass; doubled for each further one."""
    max_total_tokens: Operational[int | None] = Field(default=None, ge=1)
    """Most prompt and sampled tokens of this stage; passing it stops the run, which can be resumed with more."""
    max_cost: Operational[float | None] = Field(default=None, gt=0.0)
    """Most money for this stage, in the currency of the models' prices; passing it stops the run likewise."""
    shards: Operational[int] = Field(default=1, ge=1, le=MAX_SHARDS)
    """Parts into which the work is divided when it begins, so that several processes can share it (`treadle work`)."""


class RolloutsSettings(Section):
    """All that an instance of the stage reads."""

    model_name: str
    """Name of the model in the configuration; stands in the rows."""
    model: ModelSettings
    """The model and its endpoints."""
    tokenizer_digest: str = ""
    """Digest that the tokenizer must have; empty means that any will do."""
    environment: EnvironmentSettings = EnvironmentSettings()
    """What the agent works with."""
    summarizer: ModelSettings | None = None
    """The model that `environment.search.summarizer` names."""
    summarizer_tokenizer_digest: str = ""
    """Like `tokenizer_digest`, for that model."""
    options: RolloutOptions = RolloutOptions()
    """How many, of what, how sampled."""
    seed: int = 0
    """The run's seed; every rollout's and turn's seed derives from it."""


class QuestionSelection(Protocol):
    """The keys of a stage's section that choose questions; see `RolloutOptions`."""

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


ASKED_COLUMNS = (*QUESTION_COLUMNS, "split")
"""Columns of a question without its gold answers."""


def selected_questions(
    options: QuestionSelection, tables: Sequence[Rows], columns: Sequence[str] = ASKED_COLUMNS
) -> Iterator[Mapping[str, Any]]:
    """The questions to be answered, as a stream of these columns (`dataset` and `split` among them)."""
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
