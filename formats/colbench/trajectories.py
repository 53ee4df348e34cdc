"""Read dialogues that another program collected: the task, what agent and person wrote, and the answer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treadle.core.errors import DataError
from treadle.core.untrusted.input_files import InputRow, read_rows
from treadle.datagen.questions.layouts import RowRejected
from treadle.datagen.questions.rows import check_text
from treadle.formats.colbench.tasks import ColbenchTask, task_of

MAX_CHARS = 1_000_000
"""Most characters of all messages of one dialogue."""
_NO_ANSWER = "No answer"
"""What the published program stores for a dialogue without an answer."""


@dataclass(frozen=True, slots=True)
class ColbenchTrajectory:
    """One dialogue.

    Attributes:
        number: 1-based row of the file.
        turns: Texts of the agent: of the last turn the whole text, of earlier turns the part that later prompts show.
        replies: The person's replies to all turns but the last.
        has_answer: Whether the file has an answer for the dialogue.
    """

    number: int
    task: ColbenchTask
    turns: Sequence[str]
    replies: Sequence[str]
    has_answer: bool

    @property
    def key(self) -> tuple[str, str]:
        """Description and reference of the task, without white space around them."""
        return task_key(self.task.description, self.task.reference)


def task_key(description: str, reference: str) -> tuple[str, str]:
    """Return a key of a task; only equal tasks have the same key."""
    return description.strip(), reference.strip()


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row that cannot be used, and why."""

    number: int
    error: RowRejected


def read_trajectories(path: Path) -> Iterator[ColbenchTrajectory | Rejected]:
    """Yield the rows of a JSON, JSON Lines or parquet file; raise DataError as `read_rows` does."""
    for row in read_rows(path):
        try:
            yield _trajectory(row)
        except RowRejected as error:
            yield Rejected(row.number, error)


def check_alignment(path: Path, num_samples: int) -> None:
    """Raise DataError unless the file repeats one list of tasks `num_samples` times, as the published program does.

    Sample j of task i of m is row j m + i, counted from 0.
    """
    rows = [_description(row) for row in read_rows(path)]
    num_tasks, rest = divmod(len(rows), num_samples)
    if rest:
        raise DataError(f"{path} has {len(rows):,} rows, which is no multiple of {num_samples} samples per task")
    for place in range(num_tasks, len(rows)):
        if rows[place] != rows[place % num_tasks]:
            raise DataError(
                f"{path}, row {place + 1}: its problem_description differs from that of row {place % num_tasks + 1}, "
                f"of which it has to be sample {place // num_tasks + 1}: with {num_samples} samples per task, the "
                f"list of {num_tasks:,} tasks is repeated as a whole"
            )


def tasks_in(path: Path) -> Iterator[ColbenchTask]:
    """Yield each task of the dialogues once, in the order of the file."""
    seen: set[tuple[str, str]] = set()
    for one in read_trajectories(path):
        if isinstance(one, ColbenchTrajectory) and one.key not in seen:
            seen.add(one.key)
            yield one.task


def _description(row: InputRow) -> object:
    task = (row.value or {}).get("task")
    return task.get("problem_description") if isinstance(task, Mapping) else None


def _trajectory(row: InputRow) -> ColbenchTrajectory:
    fields = row.value
    if fields is None:
        raise RowRejected(row.reason, row.detail)
    task, history = fields.get("task"), fields.get("dialogue_history")
    if not isinstance(task, Mapping) or not isinstance(history, list):
        raise RowRejected("missing_field", "it has no task and dialogue_history, so it is no dialogue of ColBench")
    try:
        known = task_of(task)
    except DataError as error:
        raise RowRejected("bad_task", str(error)) from None
    texts = [_text(item, place) for place, item in enumerate(history)]
    if len(texts) < 2 or len(texts) % 2:
        raise RowRejected("bad_dialogue", f"its dialogue has {len(texts)} messages; it has to end with the agent's")
    if texts[0].strip() != known.description.strip():
        raise RowRejected("bad_dialogue", "its first message is not the task's problem_description")
    turns, replies = texts[1::2], texts[2::2]
    turns[-1] = _written(history[-1], turns[-1])
    check_text("".join(itertools.chain(turns, replies)))
    if sum(map(len, itertools.chain(turns, replies))) > MAX_CHARS:
        raise RowRejected("too_long", f"its dialogue has more than {MAX_CHARS:,} characters")
    answer = fields.get("answer")
    return ColbenchTrajectory(row.number, known, turns, replies, isinstance(answer, str) and answer != _NO_ANSWER)


def _text(item: Any, place: int) -> str:
    role = "assistant" if place % 2 else "user"
    if not isinstance(item, Mapping) or item.get("role") != role or not isinstance(item.get("content"), str):
        raise RowRejected("bad_dialogue", f"message {place + 1} of its dialogue is no text of role {role}")
    return str(item["content"])


def _written(item: Mapping[str, Any], shown: str) -> str:
    output = item.get("output")
    return output if isinstance(output, str) else shown
