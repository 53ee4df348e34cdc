"""Read a job: its plan, its environment and its rows, whose prompts are encoded and checked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from treadle.agent.contract import Task
from treadle.core.chat import ChatTokenizer
from treadle.environments.registry import parse_environment
from treadle.environments.settings import EnvironmentSettings
from treadle.rl.engine.errors import BadEnvironment, BadPlan
from treadle.rl.training.plan import RlPlan


def plan_of(job: Mapping[str, Any]) -> RlPlan:
    """Return the job's plan."""
    return RlPlan.from_json(json.dumps(job["plan"]))


def environment_of(job: Mapping[str, Any]) -> EnvironmentSettings:
    """Return the settings of the policy's environment; raise BadEnvironment if they differ from the plan's."""
    settings = parse_environment(job["environment"])
    if settings.digest() != job["environment_digest"]:
        raise BadEnvironment(
            f"the agent's prompts, tools or limits in this engine (digest {settings.digest()[:12]}) are not those of "
            f"the training plan ({job['environment_digest'][:12]}): the plan was made by another version of Treadle; "
            "install one version on all machines and run the stage again"
        )
    return settings


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
