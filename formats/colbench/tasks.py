"""Write the tasks of a ColBench file as questions, with a configuration that reads them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import orjson

from treadle.agent.tools.workspace.files import BadTask
from treadle.core.errors import DataError
from treadle.core.store.exported import new_folder, write_facts
from treadle.core.untrusted.input_files import read_rows
from treadle.environments.colbench.frontend.markup import find_page, target_page
from treadle.environments.colbench.task import ProgramTask

TASKS_FILE = "tasks.jsonl"
SOURCES_FILE = "questions.toml"
_FIELDS = ("problem_description", "ground_truth", "test_cases")
_PAGE_FIELDS = ("problem_description", "ground_truth")

Split = Literal["train", "heldout"]


@dataclass(frozen=True, slots=True)
class Half:
    """Half of ColBench: the scorer of its questions and their hidden fields."""

    scorer: str
    payload: tuple[str, ...]


BACKEND = Half("programs", ("reference", "tests", "extra"))
FRONTEND = Half("similarity", ("page", "extra"))


class ImportedTask(Protocol):
    """Task of either half."""

    def as_json(self, split: Split | None) -> bytes:
        """Return a line that the stage `questions` reads."""
        ...


@dataclass(frozen=True, slots=True)
class ColbenchTask:
    """One task of a file; `extra` are the fields that ColBench does not define, unchanged."""

    description: str
    reference: str
    tests: Mapping[str, str]
    extra: Mapping[str, Any]

    def as_json(self, split: Split | None) -> bytes:
        """Return a line that the stage `questions` reads."""
        hidden = {"reference": self.reference, "tests": self.tests, "extra": self.extra}
        return orjson.dumps({"question": self.description, **hidden, **({"split": split} if split else {})}) + b"\n"


def task_of(fields: Mapping[str, Any]) -> ColbenchTask:
    """Read a task of ColBench; raise DataError, which quotes nothing that is hidden."""
    description = _description_of(fields, _FIELDS)
    try:
        hidden = ProgramTask.of({"reference": fields["ground_truth"], "tests": fields["test_cases"]})
    except BadTask as error:
        name = "ground_truth" if str(error).startswith("reference") else "test_cases"
        raise DataError(f"{name}: {error}") from None
    extra = {name: value for name, value in fields.items() if name not in _FIELDS}
    return ColbenchTask(description, hidden.reference, hidden.tests, extra)


@dataclass(frozen=True, slots=True)
class PageTask:
    """One task about a page; `extra` are the other fields of the file, unchanged."""

    description: str
    page: str
    extra: Mapping[str, Any]

    def as_json(self, split: Split | None) -> bytes:
        """Return a line that the stage `questions` reads."""
        hidden = {"page": self.page, "extra": self.extra}
        return orjson.dumps({"question": self.description, **hidden, **({"split": split} if split else {})}) + b"\n"


def page_task_of(fields: Mapping[str, Any]) -> PageTask:
    """Read a task of the frontend half; raise DataError, which quotes nothing that is hidden."""
    description = _description_of(fields, _PAGE_FIELDS)
    try:
        page = target_page({"page": fields["ground_truth"]})
    except BadTask as error:
        raise DataError(f"ground_truth: {error}") from None
    if find_page(page) is None:
        raise DataError("ground_truth is no page: it has neither <html> nor <body>")
    return PageTask(description, page, {name: value for name, value in fields.items() if name not in _PAGE_FIELDS})


def _description_of(fields: Mapping[str, Any], needed: Sequence[str]) -> str:
    if missing := [name for name in needed if fields.get(name) is None]:
        raise DataError(f"it has no field {missing[0]!r}, so it is no task of ColBench")
    description = fields["problem_description"]
    if not isinstance(description, str) or not description.strip():
        raise DataError("problem_description is no text")
    return description


def import_tasks(
    source: Path,
    target: Path,
    *,
    half: Half = BACKEND,
    split: Split | None = None,
    limit: int | None = None,
    replace: bool = False,
) -> int:
    """Write the tasks of a JSON, JSON Lines or parquet file of one half into a new folder; return their number.

    `limit` is the number of tasks to take from the start: published figures are over the first 1,000 of the test file.
    Raises DataError naming a row that is no task, ConfigError for a target that cannot be used, and StorageError.
    """
    read = page_task_of if half is FRONTEND else task_of
    tasks = itertools.islice(_tasks(source, read), limit)
    return write_tasks(tasks, source, target, half=half, split=split, replace=replace)


def _tasks(source: Path, read: Callable[[Mapping[str, Any]], ImportedTask]) -> Iterator[ImportedTask]:
    for row in read_rows(source):
        if row.value is None:
            raise DataError(f"{source}, row {row.number}: {row.detail}")
        try:
            yield read(row.value)
        except DataError as error:
            raise DataError(f"{source}, row {row.number}: {error}") from None


def write_tasks(
    tasks: Iterator[ImportedTask],
    source: Path,
    target: Path,
    *,
    half: Half = BACKEND,
    split: Split | None = None,
    replace: bool = False,
) -> int:
    """Write tasks of one half as questions into a new folder; return their number. Raises like `import_tasks`."""
    count = 0
    with new_folder(target, replace=replace) as folder:
        with (folder / TASKS_FILE).open("wb") as file:
            for task in tasks:
                file.write(task.as_json(split))
                count += 1
        if not count:
            raise DataError(f"{source} has no task")
        path = target.absolute() / TASKS_FILE
        (folder / SOURCES_FILE).write_text(_sources(path, half, has_split=split is not None), encoding="utf-8")
        write_facts(folder, {"kind": "questions", "format": "colbench", "source": source.name, "num_questions": count})
    return count


def _sources(path: Path, half: Half, *, has_split: bool) -> str:
    """Return the part of a configuration that reads the tasks."""
    # A JSON string is a TOML string, except for DEL, which JSON does not escape.
    quoted = orjson.dumps(str(path)).decode().replace("\x7f", "\\u007f")
    lines = [
        "# Give it after the configuration of a run:  treadle run config.toml questions.toml --run NAME",
        "",
        "[[questions.sources]]",
        f"path = {quoted}",
        'dataset = "colbench"',
        'domain = "code"',
        'question_field = "question"',
        f'scorer = "{half.scorer}"',
        f"payload = {orjson.dumps(half.payload).decode()}",
        *(['split_field = "split"'] if has_split else []),
    ]
    return "\n".join(lines) + "\n"
