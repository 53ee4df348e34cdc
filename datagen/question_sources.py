"""Which questions a run takes in: the settings of the `questions` stage, and the rows of each source as a stream."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from treadle.agent.tools.search_config import SearchRoute
from treadle.core.config import Added, Operational, Section
from treadle.core.errors import ConfigError, DataError
from treadle.core.inputs import FileFormat, InputRow, file_sha256, read_rows
from treadle.datagen.benchmarks import GENERIC, AnswerForm, Benchmark, Domain, rule_for

Split = Literal["train", "heldout"]


class SourceSettings(Section):
    """One file, folder or hub data set of questions. Fields left open follow the data set's rule."""

    path: Operational[Path | None] = None
    """A .jsonl, .json or .parquet file, or a folder with a data set that `datasets` reads."""
    hub: str | None = None
    """Hub id of a data set, such as `org/name`, instead of a path."""
    hub_config: str | None = None
    """Configuration of the hub data set."""
    hub_split: str = "train"
    """Split to read of a hub data set or a data set folder."""
    revision: str | None = None
    """Commit of the hub data set; looked up and pinned when the run starts if open."""
    format: FileFormat | None = None
    """Format of the file, where its suffix does not say."""
    dataset: str = ""
    """Name of the data set; default: the file's name without suffix, or the last part of the hub id."""
    domain: Domain | None = None
    """math, qa or choice; default: by `domains`, then by the data set's rule."""
    source_field: str | None = None
    """Field with each row's own data set name, for files that mix several."""
    question_field: str | None = None
    """Field of the question."""
    answer_field: str | None = None
    """Field of the gold answer or answers."""
    answer_form: AnswerForm | None = None
    """How the answer lies in its field."""
    choices_field: str | None = None
    """Field with the list of options."""
    search: Added[SearchRoute | None] = None
    """Where its questions are searched: local, web or both; default: by `questions.search`, then by the data set's
    rule."""
    split: Split | None = None
    """Split of all its questions; default: by `split_field`, then by `heldout_share`."""
    split_field: str | None = None
    """Field with each row's split: train, or one of heldout, test, dev, validation."""
    limit: int | None = Field(default=None, ge=1)
    """Read only so many rows, from the start."""
    name: str = ""
    """What rows and errors call the source; filled in when the run starts."""
    sha256: str | None = None
    """Content of the file; filled in when the run starts, so that an edited file is read again."""

    @model_validator(mode="after")
    def _has_one_origin(self) -> Self:
        if (self.path is None) == (self.hub is None):
            raise ValueError("give either path or hub")
        return self

    @property
    def label(self) -> str:
        """How rows and messages name it."""
        return self.name or self.hub or (self.path.name if self.path else "")

    @property
    def dataset_name(self) -> str:
        """Name of the data set as configured, else by the file or hub id."""
        if self.dataset:
            return self.dataset
        return self.hub.rsplit("/", 1)[-1] if self.hub else self.path.stem if self.path else ""


class QuestionsSettings(Section):
    """Taking in questions: sources, limits, duplicates, decontamination, split."""

    sources: tuple[SourceSettings, ...] = ()
    """Where the questions come from, in order; of duplicates the first is kept."""
    domains: dict[str, Domain] = {}
    """Data set name -> domain, for names that no rule knows."""
    search: Added[dict[str, SearchRoute]] = {}
    """Data set name -> where its questions are searched: local, web or both; capitals of the name do not count. It
    takes effect where `environment.search` has the web and leaves the choice to the question; without the web all are
    searched in the corpus."""
    benchmarks: Added[dict[str, Benchmark]] = {}
    """Benchmarks of your own by name in lower case, beside those shipped; one of the same name replaces it."""
    max_question_chars: int = Field(default=100_000, ge=1)
    """A longer question, with its options, goes to quarantine."""
    max_answer_chars: int = Field(default=10_000, ge=1)
    """A row with a longer gold answer goes to quarantine."""
    near_duplicate_threshold: float = Field(default=0.9, gt=0.5, le=1.0)
    """Jaccard similarity of word 3-grams from which two questions may be near duplicates."""
    decontaminate: tuple[SourceSettings, ...] = ()
    """Benchmarks whose questions may not be among the training questions."""
    contamination_overlap: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of a benchmark question's words, in shared runs of 13, from which a training question is contaminated."""
    heldout_share: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of the questions without a fixed split that are held out, chosen by a digest of the question."""
    max_error_rate: float = Field(default=0.25, ge=0.0, le=1.0)
    """The stage fails when a larger share of the rows is unusable (duplicates do not count)."""

    @model_validator(mode="after")
    def _knows_the_domains(self) -> Self:
        for source in self.sources:
            name = source.dataset_name
            if source.source_field is None and self.domain_of(name, source) is None:
                raise ValueError(
                    f"the domain of data set {name!r} is not known; set domain of the source to math, qa or choice"
                )
        return self

    @field_validator("benchmarks")
    @classmethod
    def _are_lower_case(cls, benchmarks: dict[str, Benchmark]) -> dict[str, Benchmark]:
        for name in benchmarks:
            if name != name.lower():
                raise ValueError(f"name {name!r} has capitals, which do not count; write {name.lower()!r}")
        return benchmarks

    @field_validator("search")
    @classmethod
    def _are_told_apart(cls, search: dict[str, SearchRoute]) -> dict[str, SearchRoute]:
        if doubled := [name for name, number in Counter(map(str.lower, search)).items() if number > 1]:
            raise ValueError(f"{doubled[0]!r} is there twice; capitals do not count")
        return search

    def benchmark_of(self, dataset: str) -> Benchmark:
        """What is known of a data set, by the benchmarks shipped and by those of the configuration."""
        return rule_for(dataset, self.benchmarks)

    def domain_of(self, dataset: str, source: SourceSettings) -> Domain | None:
        """Domain of the questions without options that a source has of a data set; None where nobody says it."""
        return self.domains.get(dataset) or source.domain or self.benchmark_of(dataset).domain

    def search_of(self, dataset: str, source: SourceSettings) -> SearchRoute | None:
        """Where the questions that a source has of a data set are searched; None where nobody says it."""
        rule = self.benchmark_of(dataset)
        asked = {name.lower(): route for name, route in self.search.items()}.get(dataset.lower())
        return asked or source.search or (None if rule is GENERIC else rule.search)

    def with_digests(self) -> QuestionsSettings:
        """Fill in what each source holds now (digests, hub revisions, names), as part of the fingerprint.

        Raises ConfigError without any source and DataError for one that cannot be read.
        """
        if not self.sources:
            raise ConfigError("no questions are configured; add a source under questions.sources with path or hub")
        names = unique_names([*self.sources, *self.decontaminate])
        filled = [
            pinned(source, name) for source, name in zip([*self.sources, *self.decontaminate], names, strict=True)
        ]
        count = len(self.sources)
        return self.model_copy(update={"sources": tuple(filled[:count]), "decontaminate": tuple(filled[count:])})


def unique_names(sources: Sequence[SourceSettings]) -> list[str]:
    """File names, with as many folders before them as tell files apart (`gsm8k/test.jsonl`); a second use of the
    same file is numbered."""
    parts = [source.path.absolute().parts[1:] if source.path else (source.hub or "",) for source in sources]
    depth = dict.fromkeys(parts, 1)
    while True:
        clashing = Counter("/".join(part[-keep:]) for part, keep in depth.items())
        grow = [part for part, keep in depth.items() if clashing["/".join(part[-keep:])] > 1 and keep < len(part)]
        if not grow:
            break
        for part in grow:
            depth[part] += 1
    uses: Counter[str] = Counter()
    names = []
    for part in parts:
        name = "/".join(part[-depth[part] :])
        uses[name] += 1
        names.append(name if uses[name] == 1 else f"{name}#{uses[name]}")
    return names


def pinned(source: SourceSettings, name: str) -> SourceSettings:
    """The source with its name and what identifies its content; raises DataError."""
    if source.path is not None:
        return source.model_copy(update={"name": source.name or name, "sha256": file_sha256(source.path)})
    revision = source.revision or _hub_revision(source.hub or "")
    return source.model_copy(update={"name": source.name or name, "revision": revision})


def _hub_errors() -> tuple[type[BaseException], ...]:
    """What the hub's clients raise; the base of their HTTP error is that of the HTTP library in use."""
    from huggingface_hub.errors import HfHubHTTPError

    return (OSError, ValueError, HfHubHTTPError, *HfHubHTTPError.__bases__)


def _hub_revision(hub: str) -> str:
    from huggingface_hub import HfApi

    try:
        return str(HfApi(endpoint=os.environ.get("HF_ENDPOINT")).dataset_info(hub, timeout=20).sha)
    except _hub_errors() as error:
        raise DataError(
            f"hub data set {hub} cannot be looked up ({type(error).__name__}); "
            "check its id and the network, or set revision if it is in the local cache"
        ) from error


def source_rows(source: SourceSettings) -> Iterator[InputRow]:
    """Stream the rows of a source, at most `limit`; raises DataError where it cannot be read or has changed."""
    if source.path is not None and source.sha256 not in (None, file_sha256(source.path)):
        raise DataError(f"input file {source.path} was changed while the run was starting; start again")
    if source.path is not None and not source.path.is_dir():
        rows = read_rows(source.path, source.format)
    else:
        rows = _dataset_rows(source)
    for count, row in enumerate(rows, start=1):
        yield row
        if count == source.limit:
            return


def _dataset_rows(source: SourceSettings) -> Iterator[InputRow]:
    try:
        import datasets
    except ImportError:
        raise ConfigError(
            f"data set {source.label} needs the package datasets; install treadle with its extra ingest"
        ) from None

    where = str(source.path) if source.path else source.hub or ""
    number = 0
    try:
        rows: Any = datasets.load_dataset(
            where, source.hub_config, split=source.hub_split, revision=source.revision, streaming=True
        )
        for number, value in enumerate(rows, start=1):
            yield InputRow(number, dict(value))
    except (*_hub_errors(), datasets.exceptions.DatasetsError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(f"data set {source.label} cannot be read: {reason}") from error
    if number == 0:
        raise DataError(f"data set {source.label} holds no rows in its split {source.hub_split!r}")
