"""A job for the engine `trl` over two kinds of environments: sums with Python, and a user's file that wants a digit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from support.training import trl_jobs

from treadle.core.engines.config import Machine
from treadle.environments.registry import ENVIRONMENTS
from treadle.rl.config import RlOptions, RlSettings
from treadle.rl.training.launch import EngineJob, RlFolder
from treadle.rl.training.plan import RlPlan, plan_phase
from treadle.rl.training.stored_rows import PAYLOAD_SCHEMA
from treadle.rl.verl.rows import TRAINING_SCHEMA

CODE = '''
from treadle.api import Done, Environment, ModelTurn, StoredRollout, Task


class Digit(Environment):
    """Say the right digit; rewards are up to 1000."""

    async def reset(self, task: Task) -> str:
        self.secret = task.payload["secret"]
        return "Which digit?"

    async def step(self, turn: ModelTurn) -> Done:
        return Done("Right." if self.secret in turn.text else "No.")

    async def score(self, task: Task, rollout: StoredRollout) -> float:
        return 1000.0 if task.payload["secret"] in rollout.turns[0] else 0.0
'''
QUESTION = [{"role": "user", "content": "Which digit?"}]
DIGITS = "123"
SHARES = {"default": 0.25, "digit": 0.75}


def write_policy(folder: Path) -> None:
    """Write a policy that knows the ways to answer sums, and says one of three digits."""
    trl_jobs.write_policy(folder, more=[(QUESTION, digit) for digit in DIGITS for _ in range(4)])


def settings(folder: Path) -> RlSettings:
    """Return the settings of a phase over both kinds; the class is in a file of `folder`."""
    code = folder / "digits.py"
    code.write_text(CODE)
    digit = ENVIRONMENTS.parse({"type": "digits.py:Digit", "code_file": str(code)})
    options = RlOptions.model_validate({**trl_jobs.OPTIONS, "num_epochs": 2, "learning_rate": 1e-3, "shares": SHARES})
    return RlSettings(options=options, environment=trl_jobs.ENVIRONMENT, environments={"digit": digit}, seed=1)


def make_plan(made: RlSettings) -> RlPlan:
    """Return the plan of six steps over four sums and three digits, with a validation of one of each."""
    return plan_phase(
        made,
        address="1/rl@phase-1",
        rows_digest="0" * 64,
        rows={"default": 4, "digit": 3},
        validation_rows={"default": 1, "digit": 1},
        machine=Machine(variant="cpu"),
    )


def rows() -> list[dict[str, Any]]:
    """Return the rows of both kinds."""
    digits = [
        trl_jobs.rows(1)[0]
        | {"question_key": f"d{digit}", "question": "A digit.", "answers": [], "domain": "task", "dataset": "digits"}
        | {"environment": "digit"}
        for digit in DIGITS
    ]
    return [*trl_jobs.rows(), *digits]


def write_files(folder: RlFolder) -> None:
    """Write rows, held-out rows and payloads where a job reads them."""
    made = rows()
    folder.logs.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(made, TRAINING_SCHEMA), folder.parquet)
    pq.write_table(pa.Table.from_pylist([made[0], made[-1]], TRAINING_SCHEMA), folder.validation)
    payloads = [
        {"question_key": row["question_key"], "payload": json.dumps({"secret": row["question_key"][1:]})}
        if row["environment"] == "digit"
        else {"question_key": row["question_key"], "payload": "{}"}
        for row in made
    ]
    pq.write_table(pa.Table.from_pylist(payloads, PAYLOAD_SCHEMA), folder.payloads)


def job(policy: Path, made: RlSettings) -> EngineJob:
    """Return what the engine gets."""
    named = made.named_environments().items()
    environments = {name: one.model_dump(mode="json") for name, one in named}
    return EngineJob(model=str(policy), environments=environments, interpreter=trl_jobs.interpreter())
