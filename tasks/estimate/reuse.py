"""Count how much of an instance's work earlier results and attempts have finished, and why the rest must run.

This is counted before anything is paid for: `treadle run` prints it before each instance, `--dry-run` for all of them.
Rules: docs/behaviour/runs.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from treadle.agent.jobs.keys import QuestionJob, changed_settings, unique_jobs
from treadle.core.config import digest_json
from treadle.core.errors import ArtifactError, RunError
from treadle.core.runs.bound_inputs import bind_inputs, open_inputs
from treadle.core.runs.earlier_jobs import earlier_results, known_owners
from treadle.core.runs.execute import fingerprint_of
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance, Rows

Inputs = Mapping[str, Sequence[Rows]]

_CONTENT = ("question", "choices", "answers", "domain", "scorer", "format", "search", "environment")
_PLACE = ("source_file", "source_row")
_SHOWN_KEYS = 3
_FURTHER = "further sample"


@dataclass(frozen=True, slots=True)
class Reuse:
    """Finished and open jobs of an instance that is going to run."""

    address: str
    noun: str
    """Plural noun for its jobs."""
    num_jobs: int
    num_finished: int
    """Number of jobs that call no model again."""
    reasons: tuple[str, ...] = ()
    """Why the jobs that are not finished must run."""

    @property
    def num_open(self) -> int:
        """Number of jobs that must run."""
        return self.num_jobs - self.num_finished

    def text(self) -> str:
        """Return how many jobs must run and why, as one sentence without the period."""
        counts = f"{self.num_open:,} of {self.num_jobs:,} {self.noun} to be made, {self.num_finished:,} reused"
        return counts + (f"; because: {', '.join(self.reasons)}" if self.reasons else "")

    def as_dict(self) -> dict[str, Any]:
        """Return the counts and reasons in a JSON-able form."""
        return {**asdict(self), "reasons": list(self.reasons), "num_open": self.num_open}


def reuse_of(item: Instance, run: Run, inputs: Inputs | None = None, *, force: bool = False) -> Reuse | None:
    """Count the finished jobs of an instance; None if its stage has no jobs or an input is missing.

    `inputs`: its tables, if they are not those of the current results; then there is no fingerprint.
    """
    if item.stage.jobs is None:
        return None
    fingerprint = ""
    if inputs is None:
        try:
            bound = bind_inputs(item, run)
            inputs, fingerprint = open_inputs(run, bound), fingerprint_of(item, bound)
        except (RunError, ArtifactError):
            return None
    known, is_open = known_owners(item, run, fingerprint, force=force), list[QuestionJob]()
    num_jobs = 0
    for job in unique_jobs(item.stage.jobs.of(item.settings, inputs)):
        num_jobs += 1
        if job.key not in known:
            is_open.append(job)
    reasons = ("--force",) if force else tuple(_Reasons(item, run, inputs).of(is_open)) if is_open else ()
    return Reuse(str(item.address), item.stage.jobs.noun, num_jobs, num_jobs - len(is_open), reasons)


class _Reasons:
    """Reasons why jobs of an instance are open, compared with its current result."""

    def __init__(self, item: Instance, run: Run, inputs: Inputs) -> None:
        self._item, self._run, self._inputs = item, run, inputs
        self._record = run.record(item.address)

    def of(self, jobs: Sequence[QuestionJob]) -> Iterator[str]:
        """Yield the reasons for open jobs, most important first; nothing if the instance has no result."""
        record = self._record
        if record is None:
            return
        if (changed := list(self._global_changes(record))) or (changed := list(self._unreadable(record))):
            yield from changed
            return
        questions, others = self._counted(jobs, record)
        for what, keys in questions.items():
            yield f"{len(keys):,} question{'s' * (len(keys) != 1)} {what}"
        for what, count in others.items():
            yield f"{count:,} {what}" + "s" * (what == _FURTHER and count != 1)

    def _global_changes(self, record: StageRecord) -> Iterator[str]:
        """Yield changes that affect every job."""
        keys = changed_settings(record.settings, self._item.settings)
        if keys:
            more = f" and {len(keys) - _SHOWN_KEYS} more" if len(keys) > _SHOWN_KEYS else ""
            yield f"changed: {', '.join(keys[:_SHOWN_KEYS])}{more}"
        before = [ref.artifact.digest for ref in record.inputs.get("checkpoint", ())]
        if before != [table.digest for table in self._inputs.get("checkpoint", ())]:
            made = self._item.inputs.get("checkpoint", ())
            yield f"{', '.join(map(str, made)) or 'the model'} was trained again"

    def _unreadable(self, record: StageRecord) -> Iterator[str]:
        """Yield the reason why nothing of the result can be reused, if there is one."""
        if record.imported_from:
            yield f"the current result was imported from {record.imported_from}"
            return
        try:
            earlier_results(self._item, self._run)[0].rows(_table_of_jobs(record))
        except ArtifactError as error:
            yield str(error)

    def _counted(
        self, jobs: Sequence[QuestionJob], record: StageRecord
    ) -> tuple[Mapping[str, set[str]], Mapping[str, int]]:
        """Return the keys of questions that were edited, are new or were not selected before, by these reasons.

        Also returns the number of open jobs about other questions, by the reason why each job is open.
        """
        columns = [name for name in _CONTENT if name in jobs[0].question]
        before = self._questions(record, columns)
        now = {_content(row, columns) for table in self._inputs["questions"] for row in table.rows(columns)}
        contents, rows = set(before.values()), self._rows_before(record)
        questions: dict[str, set[str]] = {"edited": set(), "new": set(), "not selected before": set()}
        others: Counter[str] = Counter()
        for job in jobs:
            content, key = _content(job.question, columns), job.question["question_key"]
            if content not in contents:
                was = before.get(_place(job.question))
                questions["edited" if was is not None and was not in now else "new"].add(key)
            elif (key, 0) not in rows:
                questions["not selected before"].add(key)
            elif (is_finished := rows.get((key, job.sample_index))) is None:
                others[_FURTHER] += 1
            else:
                others["made differently by this version" if is_finished else "not finished before"] += 1
        return {what: keys for what, keys in questions.items() if keys}, others

    def _questions(self, record: StageRecord, columns: Sequence[str]) -> Mapping[str, str]:
        """Return the content digest by source file and row of the questions that the result was made from.

        Empty if one of their tables cannot be read.
        """
        with suppress(ArtifactError):
            return {
                _place(row): _content(row, columns)
                for ref in record.inputs.get("questions", ())
                for row in self._run.rows(ref.artifact).rows((*_PLACE, *columns))
            }
        return {}

    def _rows_before(self, record: StageRecord) -> Mapping[tuple[str, int], bool]:
        """Return, by question key and sample index of each row of the result, whether its job was finished."""
        kind = _table_of_jobs(record)
        columns = ["question_key", "job", *(["sample_index"] if kind == "rollouts" else [])]
        with suppress(ArtifactError):
            return {
                (row["question_key"], row.get("sample_index", 0)): row["job"] is not None
                for row in self._run.rows(record.outputs[kind]).rows(columns)
            }
        return {}


def _table_of_jobs(record: StageRecord) -> str:
    """Return the kind of the table that has a row per job."""
    return "rollouts" if "rollouts" in record.outputs else "pool_questions"


def _content(question: Mapping[str, Any], columns: Sequence[str]) -> str:
    """Return a digest of the columns of a question that the jobs of a stage may depend on."""
    return digest_json([question[name] for name in columns])


def _place(question: Mapping[str, Any]) -> str:
    return "\0".join(str(question[name]) for name in _PLACE)
