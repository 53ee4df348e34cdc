"""Define the settings of the stage `questions` and of its sources."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import orjson
from pydantic import Field, create_model, field_validator, model_validator

from treadle.agent.contract import DEFAULT_ENVIRONMENT
from treadle.agent.tools.search_config import SearchRoute
from treadle.core.config import Operational, Section, canonical_json
from treadle.core.errors import ConfigError
from treadle.core.untrusted.input_files import FileFormat
from treadle.datagen.questions.benchmarks import GENERIC, SCORED_DOMAINS, TASK, AnswerForm, Benchmark, Domain, rule_for
from treadle.datagen.questions.task_environment import QUESTION_ENVIRONMENT, TaskEnvironment
from treadle.environments.mixture import table_of
from treadle.environments.scorers.base import Scorer
from treadle.environments.scorers.registry import SCORERS, scorer_named

Split = Literal["train", "heldout"]
PAYLOAD_FIELD = "payload"
DOMAIN_FIELD = "domain"
"""Fields of an environment's task. Their names are fixed: sources have no key such as `question_field` for them."""
_ENVIRONMENT = "environment"


if TYPE_CHECKING:

    class _Origin(Section):
        """Base of `SourceSettings` with its key `from`."""
else:
    # `from` is a keyword, so no class body can declare it.
    _Origin = create_model(
        "_Origin",
        __base__=Section,
        __module__=__name__,
        **{
            "from": (
                Literal["environment"] | None,
                Field(default=None, description="`environment` for the tasks that the type of the environment brings."),
            )
        },
    )

_KEYS_OF_FILES = (
    "hub_config", "revision", "format", "source_field", "question_field", "answer_field", "answer_form",
    "choices_field", "split_field", "payload",
)  # fmt: skip
"""Keys that determine how rows are read; the rows of an environment have fixed fields."""
TASK_FIELDS = {
    "question_field": "question",
    "answer_field": "answers",
    "choices_field": "choices",
    "source_field": "dataset",
    "split_field": "split",
}
"""Key of a source that names a field -> the field of an environment's task that it is set to."""


class SourceSettings(_Origin):
    """One file, folder or hub data set of questions, or the tasks of the environment. Keys that are not set follow the
    data set's benchmark."""

    path: Operational[Path | None] = None
    """A .jsonl, .json, .csv, .tsv or .parquet file, or a folder with a data set that `datasets` reads."""
    hub: str | None = None
    """Hub id of a data set, such as `org/name`, instead of a path."""
    hub_config: str | None = None
    """Configuration of the hub data set."""
    hub_split: str = "train"
    """Split to read of a hub data set or a data set folder."""
    revision: str | None = None
    """Commit of the hub data set; if not set, the newest one is looked up and pinned when the run starts."""
    format: FileFormat | None = None
    """Format of the file, if its suffix does not show it."""
    dataset: str = ""
    """Name of the data set; default: the file's name without suffix, or the last part of the hub id."""
    domain: Domain | None = None
    """Domain of data sets not in `domains`: math, qa or choice, or another name if `scorer` is set; default: that of
    the data set's benchmark."""
    source_field: str | None = None
    """Field with each row's data set name, for files that mix several."""
    question_field: str | None = None
    """Field of the question."""
    answer_field: str | None = None
    """Field of the gold answer or answers."""
    answer_form: AnswerForm | None = None
    """Form of the answer in its field."""
    choices_field: str | None = None
    """Field with the list of options."""
    scorer: str | None = None
    """What scores its rollouts in place of the scorer of the domain: a shipped type such as `workspace_tests` (the
    hidden tests in the payload decide) or `outcome` (the tools' method `outcome` does), an entry point, or an entry of
    the table `scorers`. Questions need gold answers only if it does."""
    search: SearchRoute | None = None
    """Where its questions are searched: local, web or both; default: by `questions.search`, then by the data set's
    benchmark."""
    split: Split | None = None
    """Split of all its questions; an environment is asked for its tasks of this split. Default: by `split_field`, then
    by `heldout_share`."""
    split_field: str | None = None
    """Field with each row's split: train, or one of heldout, test, dev, validation."""
    limit: int | None = Field(default=None, ge=1)
    """Maximum number of rows to read, from the start."""
    environment: str = DEFAULT_ENVIRONMENT
    """Environment of its tasks: the name of a table under `environments`; `default` is `[environment]`."""
    payload: tuple[str, ...] = ()
    """Fields that become the hidden payload of a task, which no model that is trained or measured reads. Each row must
    have them all."""
    name: str = ""
    """Name of the source in rows and errors; filled in when the run starts."""
    sha256: str | None = None
    """Digest of the file's content; filled in when the run starts, so that an edited file is read again."""

    @model_validator(mode="after")
    def _check_one_origin(self) -> Self:
        if [self.path is None, self.hub is None, not self.is_environment].count(False) != 1:
            raise ValueError('give either path or hub, or from = "environment"')
        if self.is_environment and (given := [name for name in _KEYS_OF_FILES if getattr(self, name)]):
            raise ValueError(f'tasks of the environment have fixed fields; remove {given[0]}, or from = "environment"')
        return self

    @model_validator(mode="after")
    def _check_payload_is_apart(self) -> Self:
        for key in ("source_field", "question_field", "answer_field", "choices_field", "split_field"):
            if (name := getattr(self, key)) in self.payload:
                raise ValueError(f"the field {name!r} is hidden by payload, so it cannot be {key} too; name another")
        return self

    @property
    def is_environment(self) -> bool:
        """Whether its rows are the tasks that the type of the environment provides."""
        return getattr(self, "from") is not None

    @property
    def hidden(self) -> tuple[str, ...]:
        """Fields of its rows that are shown nowhere."""
        return (PAYLOAD_FIELD,) if self.is_environment else self.payload

    def with_task_fields(self, kind: str) -> SourceSettings:
        """Return the source with the field names of environment tasks; unchanged if its rows are not such tasks.

        Unless `dataset` is set, the data set gets the name of the environment, or for `[environment]` that of its type,
        so that two environments of one type have different data sets.
        """
        if not self.is_environment:
            return self
        own = kind.rpartition(":")[2] if self.environment == DEFAULT_ENVIRONMENT else self.environment
        return self.model_copy(update={**TASK_FIELDS, "dataset": self.dataset or own})

    @property
    def label(self) -> str:
        """Name of the source in rows and messages."""
        return self.name or self.hub or (self.path.name if self.path else self.environment_label)

    @property
    def environment_label(self) -> str:
        """Name of the source whose tasks its environment provides."""
        return _ENVIRONMENT if self.environment == DEFAULT_ENVIRONMENT else f"{_ENVIRONMENT} {self.environment}"

    @property
    def dataset_name(self) -> str:
        """Name of the data set as configured, else from the file name, the hub id or the environment's name."""
        if self.dataset:
            return self.dataset
        own = _ENVIRONMENT if self.environment == DEFAULT_ENVIRONMENT else self.environment
        return self.hub.rsplit("/", 1)[-1] if self.hub else self.path.stem if self.path else own


class MixtureSettings(Section):
    """Which training tasks there are, if the flow makes further ones by exploring; held-out tasks are always those of
    the sources."""

    originals: bool = True
    """Whether the training tasks of the sources are kept, next to the further ones."""
    synthetic: Annotated[float, Field(ge=0.0)] | Literal["all"] = "all"
    """Number of further tasks, as a ratio of the number of training tasks of the sources, or `all`. If there are fewer,
    all are taken."""
    seed: int = 42
    """Seed that decides which further tasks are taken, and their order."""


class QuestionsSettings(Section):
    """Settings of the stage `questions`: sources, limits, duplicates, decontamination and split."""

    sources: tuple[SourceSettings, ...] = ()
    """Sources of the questions, in order; of duplicates the first is kept."""
    domains: dict[str, Domain] = {}
    """Data set name -> domain. Takes precedence over the domain of a source and of a benchmark."""
    search: dict[str, SearchRoute] = {}
    """Data set name (case is ignored) -> where its questions are searched: local, web or both. It applies if
    `environment.search` includes the web and leaves the choice to the question; without the web, all questions are
    searched in the corpus."""
    benchmarks: dict[str, Benchmark] = {}
    """Custom benchmarks, by name in lower case; they extend the shipped ones and replace those with the same name."""
    max_question_chars: int = Field(default=100_000, ge=1)
    """Maximum number of characters of a question with its options; a longer one goes to quarantine."""
    max_answer_chars: int = Field(default=10_000, ge=1)
    """Maximum number of characters of a gold answer; a row with a longer one goes to quarantine."""
    near_duplicate_threshold: float = Field(default=0.9, gt=0.5, le=1.0)
    """Jaccard similarity of word 3-grams at which two questions may be near duplicates."""
    decontaminate: tuple[SourceSettings, ...] = ()
    """Benchmarks whose questions must not be among the training questions."""
    contamination_overlap: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of a benchmark question's words, in shared runs of 13, at which a training question is contaminated."""
    heldout_share: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of the questions without a fixed split that are held out, chosen by a digest of the question."""
    max_error_rate: float = Field(default=0.25, ge=0.0, le=1.0)
    """Maximum share of unusable rows; above it the stage fails. Duplicates do not count."""
    max_payload_chars: int = Field(default=1_000_000, ge=2)
    """Maximum number of characters of a payload as JSON; a row with a longer one goes to quarantine."""
    mixture: MixtureSettings = MixtureSettings()
    """How tasks that the stage `exploration` makes are mixed with those of the sources."""
    environments: dict[str, TaskEnvironment] = {}
    """Facts about the environments of the sources, by name; filled in when the run starts."""
    scorers: Operational[dict[str, dict[str, Any]]] = {}
    """Settings of the user-defined scorers that sources name, by name; filled in when the run starts."""
    without_answers: tuple[str, ...] = ()
    """Names of the user-defined scorers that need no gold answers; filled in when the run starts."""
    seed: int = 0
    """Seed of the tasks of environments: the run's; filled in when the run starts."""

    @model_validator(mode="after")
    def _check_benchmarks_are_plain(self) -> Self:
        for source in self.decontaminate:
            if source.hidden or source.environment != DEFAULT_ENVIRONMENT:
                raise ValueError(
                    "decontaminate: benchmarks are compared by their questions; remove payload, from and environment"
                )
        return self

    def named_scorers(self) -> Iterator[tuple[str, str]]:
        """Yield each key that names a scorer, and the name."""
        for number, source in enumerate(self.sources):
            if source.scorer is not None:
                yield f"questions.sources[{number}].scorer", source.scorer
        for name, benchmark in self.benchmarks.items():
            if benchmark.scorer is not None:
                yield f"questions.benchmarks.{name}.scorer", benchmark.scorer

    def scorer_of(self, name: str) -> Scorer:
        """Return a scorer by name; raise ConfigError, which lists the existing scorers, for an unknown name."""
        return scorer_named(name, _entries(canonical_json(self.scorers)) if self.scorers else {})

    def _check_scorers(self) -> None:
        """Raise ConfigError for an unknown scorer, or one that reads fields which the payload of its source lacks."""
        for source in self.sources:
            if source.scorer is None or source.is_environment:
                continue
            needed = self.scorer_of(source.scorer).PAYLOAD
            if missing := [name for name in needed if name not in source.payload]:
                both = ", ".join(f'"{name}"' for name in [*source.payload, *missing])
                raise ConfigError(
                    f"scorer = {source.scorer!r} reads hidden {' and '.join(missing)}; set payload = [{both}]"
                )

    def _check_domains(self) -> None:
        """Raise ConfigError for a data set without domain or scorer, unless its environment scores its tasks."""
        for source in self.sources:
            name = source.dataset_name
            if source.is_environment or source.source_field is not None or not self.needs_answers_of(source):
                continue
            domain = self.domain_of(name, source)
            if domain is None:
                raise ConfigError(
                    f"config key 'questions': the domain of data set {name!r} is not known; set domain of the source "
                    'to math, qa or choice, scorer = "outcome" if its tools report the outcome of a rollout, or '
                    "environment if it belongs to one of [environments]"
                )
            if (
                domain not in (*SCORED_DOMAINS, TASK)
                and source.scorer is None
                and self.benchmark_of(name).scorer is None
            ):
                raise ConfigError(
                    f"config key 'questions': the domain {domain!r} of data set {name!r} has no scorer of its own, "
                    f"only {', '.join(SCORED_DOMAINS)} have; set `scorer` of the source"
                )

    @field_validator("benchmarks")
    @classmethod
    def _check_lower_case(cls, benchmarks: dict[str, Benchmark]) -> dict[str, Benchmark]:
        for name in benchmarks:
            if name != name.lower():
                raise ValueError(f"name {name!r} must be in lower case; write {name.lower()!r}")
        return benchmarks

    @field_validator("search")
    @classmethod
    def _check_unique_names(cls, search: dict[str, SearchRoute]) -> dict[str, SearchRoute]:
        if doubled := [name for name, number in Counter(map(str.lower, search)).items() if number > 1]:
            raise ValueError(f"{doubled[0]!r} is listed twice; case is ignored")
        return search

    def benchmark_of(self, dataset: str) -> Benchmark:
        """Return the benchmark of a data set, from the custom and the shipped ones."""
        return rule_for(dataset, self.benchmarks)

    def is_own(self, benchmark: Benchmark) -> bool:
        """Return whether a benchmark is a custom one."""
        return any(benchmark is own for own in self.benchmarks.values())

    def domain_of(self, dataset: str, source: SourceSettings) -> Domain | None:
        """Return the domain of a data set's questions without options in this source; None if it is not configured."""
        return self.domains.get(dataset) or source.domain or self.benchmark_of(dataset).domain

    def environment_of(self, source: SourceSettings) -> TaskEnvironment:
        """Return the facts about a source's environment."""
        return self.environments.get(source.environment, QUESTION_ENVIRONMENT)

    def needs_answers_of(self, source: SourceSettings) -> bool:
        """Return whether every question of a source needs a gold answer."""
        needed = self.environment_of(source).needs_answers
        if source.scorer is None or not needed:
            return needed
        return source.scorer not in self.without_answers and self.scorer_of(source.scorer).NEEDS_ANSWERS

    def search_of(self, dataset: str, source: SourceSettings) -> SearchRoute | None:
        """Return where the questions of a data set in this source are searched; None if it is not configured."""
        rule = self.benchmark_of(dataset)
        asked = {name.lower(): route for name, route in self.search.items()}.get(dataset.lower())
        return asked or source.search or (None if rule is GENERIC else rule.search)

    def environment_names(self) -> list[str]:
        """Return the names of the environments of the sources; the default one without sources."""
        return sorted({source.environment for source in self.sources} or {DEFAULT_ENVIRONMENT})

    def for_environments(
        self,
        environments: Mapping[str, TaskEnvironment],
        *,
        seed: int,
        scorers: Mapping[str, Scorer] = MappingProxyType({}),
    ) -> QuestionsSettings:
        """Return the settings with facts about the sources' environments and about the scorers of users.

        Raises ConfigError for a source with `from` if its environment provides no tasks.
        """
        read = {source.environment for source in self.sources if source.is_environment}
        for number, source in enumerate(self.sources):
            if source.is_environment and not environments[source.environment].brings_tasks:
                raise no_tasks(environments[source.environment].kind, number, source.environment)
        without_tasks = {"tasks_digest": "", "settings": None}
        known = {
            name: one if name in read else one.model_copy(update=without_tasks) for name, one in environments.items()
        }
        sources = tuple(source.with_task_fields(environments[source.environment].kind) for source in self.sources)
        of_scorers = {
            "scorers": {name: one.model_dump(mode="json") for name, one in scorers.items()},
            "without_answers": tuple(sorted(name for name, one in scorers.items() if not one.NEEDS_ANSWERS)),
        }
        update = {"environments": known, "seed": seed if read else 0, "sources": sources, **of_scorers}
        return self.model_copy(update=update)

    def check_sources(self) -> None:
        """Raise ConfigError if there is no source, or the domain or scorer of one is not known."""
        if not self.sources:
            raise ConfigError("no questions are configured; add a source under questions.sources with path or hub")
        self._check_scorers()
        self._check_domains()


@functools.lru_cache(maxsize=16)
def _entries(scorers: bytes) -> Mapping[str, Scorer]:
    # Cached, because this is called for every row.
    return {name: SCORERS.parse(data) for name, data in orjson.loads(scorers).items()}


def no_tasks(kind: str, number: int, name: str) -> ConfigError:
    """Return the error for `from = "environment"` of a source, by its number, if its environment provides no tasks."""
    return ConfigError(
        f"questions.sources[{number}]: environments of the type {kind!r}, such as [{table_of(name)}], provide no "
        'tasks; give path or hub instead of from = "environment", or set environment to one that provides tasks'
    )
