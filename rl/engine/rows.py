"""Read a job: its plan, its environments and its rows, whose prompts are encoded and checked."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from treadle.agent.contract import Task
from treadle.core.chat import ChatTokenizer
from treadle.core.registry import edited_code
from treadle.environments.mixture import Environments, find_environment, table_of
from treadle.environments.opening import shown_messages
from treadle.environments.registry import ENVIRONMENTS
from treadle.rl.engine.errors import BadEnvironment, BadPlan
from treadle.rl.training.plan import RlPlan


def plan_of(job: Mapping[str, Any]) -> RlPlan:
    """Return the job's plan, whose engine, rules and scorers may have code outside of this engine's packages."""
    add_import_folders(job)
    return RlPlan.from_json(json.dumps(job["plan"]))


def require_unedited(job: Mapping[str, Any]) -> None:
    """Raise BadPlan if a file with code of the user was edited since the plan was made."""
    if (file := edited_code(job["plan"], plan_of(job))) is not None:
        raise BadPlan(f"{file} was edited after the run had started; undo it, or start a new run")


def add_import_folders(job: Mapping[str, Any]) -> None:
    """Add the folders with code of the user to this process's import path."""
    # Last, so that no package of the engine is replaced.
    sys.path += [folder for folder in job.get("import_folders", ()) if folder not in sys.path]


def job_environments(job: Mapping[str, Any]) -> Environments:
    """Return the settings of the policy's environments, whose code may be outside of this engine's packages.

    Raises BadEnvironment if they differ from the plan's.
    """
    add_import_folders(job)
    digests = job["plan"]["environment_digests"]
    environments = {name: ENVIRONMENTS.parse(settings) for name, settings in job["environments"].items()}
    for name, digest in digests.items():
        found = find_environment(environments, name).digest()
        if found != digest:
            raise BadEnvironment(
                f"the agent's prompts, tools or limits in this engine ({table_of(name)}, digest {found[:12]}) are not "
                f"those of the training plan ({digest[:12]}): the plan was made by another version of Treadle; install "
                "one version on all machines and run the stage again"
            )
    return environments


def read_tasks(path: Path, payloads: Payloads) -> list[Task]:
    """Return the tasks of a file with rows of `treadle.rl.verl.rows.TRAINING_SCHEMA`, with gold answers and payloads.

    Raises BadPlan if a payload is missing.
    """
    return [payloads.added_to(Task.from_row(row)) for row in pq.read_table(path, use_threads=False).to_pylist()]


class Payloads:
    """Hidden payloads of tasks, which are stored apart from the rows."""

    def __init__(self, path: Path | None) -> None:
        """Read a file of `treadle.rl.training.stored_rows.PAYLOAD_SCHEMA`; None if no episode reads payloads."""
        self._texts: dict[str, str] | None = None
        if path is not None:
            columns = pq.read_table(path, use_threads=False).to_pydict()
            self._texts = dict(zip(columns["question_key"], columns["payload"], strict=True))

    @classmethod
    def of_job(cls, job: Mapping[str, Any]) -> Payloads:
        """Read the payloads of a job."""
        return cls(Path(job["payloads"]) if job.get("payloads") else None)

    def added_to(self, task: Task) -> Task:
        """Return the task with its payload; raise BadPlan if it is not in the file."""
        if self._texts is None:
            return task
        if task.key not in self._texts:
            raise BadPlan(f"the payload of task {task.key} is missing; run the stage again")
        return replace(task, payload=json.loads(self._texts[task.key]))


def check_rows(
    rows: Sequence[Task], num_rows: int, max_tokens: int, environments: Environments, codec: ChatTokenizer
) -> None:
    """Raise BadPlan if the number of rows differs from the plan's, or if prompts are longer than `max_tokens`."""
    if len(rows) != num_rows:
        raise BadPlan(f"there are {len(rows)} rows, but the plan has {num_rows}")
    longer = sum(len(prompt_ids(row, environments, codec)) > max_tokens for row in rows)
    if longer:
        raise BadPlan(
            f"{longer} of {len(rows)} prompts are longer than rl.max_prompt_tokens = {max_tokens}; raise it, or leave "
            "such questions out"
        )


def first_prompt(path: Path, environments: Environments, codec: ChatTokenizer) -> list[int]:
    """Return the prompt ids of the first row; raise BadPlan if the file has no rows."""
    with pq.ParquetFile(path) as file:
        batch = next(file.iter_batches(1, use_threads=False), None)
    if batch is None or not len(batch):
        raise BadPlan(f"{path} has no rows")
    return prompt_ids(Task.from_row(batch.to_pylist()[0]), environments, codec)


def prompt_ids(task: Task, environments: Environments, codec: ChatTokenizer) -> list[int]:
    """Return the token ids of a task's prompt; of the task's text alone if only an open episode can give the prompt."""
    return codec.prompt_ids(shown_messages(find_environment(environments, task.environment), task))
