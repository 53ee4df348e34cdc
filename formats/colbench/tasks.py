"""Write the tasks of a ColBench file as questions, with a configuration that reads them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson

from treadle.agent.tools.workspace.files import BadTask
from treadle.core.errors import DataError
from treadle.core.store.exported import new_folder, write_facts
from treadle.core.untrusted.input_files import read_rows
from treadle.environments.colbench.task import ProgramTask

TASKS_FILE = "tasks.jsonl"
SOURCES_FILE = "questions.toml"
PAYLOAD = ("reference", "tests", "extra")
"""Hidden fields of a question."""
_FIELDS = ("problem_description", "ground_truth", "test_cases")

Split = Literal["train", "heldout"]


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
    if missing := [name for name in _FIELDS if fields.get(name) is None]:
        raise DataError(f"it has no field {missing[0]!r}, so it is no task of ColBench")
    description = fields["problem_description"]
    if not isinstance(description, str) or not description.strip():
        raise DataError("problem_description is no text")
    try:
        hidden = ProgramTask.of({"reference": fields["ground_truth"], "tests": fields["test_cases"]})
    except BadTask as error:
        name = "ground_truth" if str(error).startswith("reference") else "test_cases"
        raise DataError(f"{name}: {error}") from None
    extra = {name: value for name, value in fields.items() if name not in _FIELDS}
    return ColbenchTask(description, hidden.reference, hidden.tests, extra)


def import_tasks(
    source: Path, target: Path, *, split: Split | None = None, limit: int | None = None, replace: bool = False
) -> int:
    """Write the tasks of a JSON, JSON Lines or parquet file into a new folder; return their number.

    `limit` is the number of tasks to take from the start: published figures are over the first 1,000 of the test file.
    Raises DataError naming a row that is no task, ConfigError for a target that cannot be used, and StorageError.
    """
    return write_tasks(itertools.islice(_tasks(source), limit), source, target, split=split, replace=replace)


def _tasks(source: Path) -> Iterator[ColbenchTask]:
    for row in read_rows(source):
        if row.value is None:
            raise DataError(f"{source}, row {row.number}: {row.detail}")
        try:
            yield task_of(row.value)
        except DataError as error:
            raise DataError(f"{source}, row {row.number}: {error}") from None


def write_tasks(
    tasks: Iterator[ColbenchTask], source: Path, target: Path, *, split: Split | None = None, replace: bool = False
) -> int:
    """Write tasks as questions into a new folder; return their number. Raises as `import_tasks` does."""
    count = 0
    with new_folder(target, replace=replace) as folder:
        with (folder / TASKS_FILE).open("wb") as file:
            for task in tasks:
                file.write(task.as_json(split))
                count += 1
        if not count:
            raise DataError(f"{source} has no task")
        path = target.absolute() / TASKS_FILE
        (folder / SOURCES_FILE).write_text(_sources(path, has_split=split is not None), encoding="utf-8")
        write_facts(folder, {"kind": "questions", "format": "colbench", "source": source.name, "num_questions": count})
    return count


def _sources(path: Path, *, has_split: bool) -> str:
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
        'scorer = "programs"',
        f"payload = {orjson.dumps(PAYLOAD).decode()}",
        *(['split_field = "split"'] if has_split else []),
    ]
    return "\n".join(lines) + "\n"
