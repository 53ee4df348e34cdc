"""Read a job's rows, check them and encode their prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from treadle.agent.contract import Task
from treadle.core.chat import ChatTokenizer
from treadle.environments.settings import EnvironmentSettings
from treadle.rl.engine.errors import BadPlan


@dataclass(frozen=True, slots=True)
class Row:
    """One question with its accepted answers.

    Attributes:
        question: The question.
        answers: Accepted answers.
    """

    question: Task
    answers: tuple[str, ...]

    @classmethod
    def from_columns(cls, row: dict[str, Any]) -> Row:
        """Return the row of a record of `treadle.rl.verl.rows.TRAINING_SCHEMA`."""
        return cls(Task.from_row(row), tuple(row["answers"]))


def read_rows(path: Path) -> list[Row]:
    """Return all rows of a file."""
    return [Row.from_columns(row) for row in pq.read_table(path).to_pylist()]


def check_rows(
    rows: Sequence[Row], num_rows: int, max_tokens: int, environment: EnvironmentSettings, codec: ChatTokenizer
) -> None:
    """Raise BadPlan if the number of rows differs from the plan's, or if prompts are longer than `max_tokens`."""
    if len(rows) != num_rows:
        raise BadPlan(f"there are {len(rows)} rows, but the plan has {num_rows}")
    longer = sum(len(prompt_ids(row, environment, codec)) > max_tokens for row in rows)
    if longer:
        raise BadPlan(
            f"{longer} of {len(rows)} prompts are longer than rl.max_prompt_tokens = {max_tokens}; raise it, or leave "
            "such questions out"
        )


def first_prompt(path: Path, environment: EnvironmentSettings, codec: ChatTokenizer) -> list[int]:
    """Return the prompt ids of the first row; raise BadPlan if the file has no rows."""
    with pq.ParquetFile(path) as file:
        batch = next(file.iter_batches(1), None)
    if batch is None or not len(batch):
        raise BadPlan(f"{path} has no rows")
    return prompt_ids(Row.from_columns(batch.to_pylist()[0]), environment, codec)


def prompt_ids(row: Row, environment: EnvironmentSettings, codec: ChatTokenizer) -> list[int]:
    """Return the token ids of a row's prompt, as at the start of a rollout; of its text if only an episode knows it."""
    messages = environment.first_messages(row.question)
    return codec.prompt_ids(messages or [{"role": "user", "content": row.question.user_message}])
