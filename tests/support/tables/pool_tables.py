"""Rows of `pools`, and the stage `sft_rows` over them, on real artifacts of a real run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from support.tables.score_tables import new_run, put_rows, rollout

from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance
from treadle.datagen.pools.tables import POOLS
from treadle.datagen.questions.tables import QUESTIONS
from treadle.datagen.sft_rows.entry import SFT_ROWS_STAGE
from treadle.datagen.sft_rows.settings import SftRowsOptions, SftRowsSettings
from treadle.environments.question.settings import QuestionSettings

ENVIRONMENT = QuestionSettings()
THINK = ("think", "<think>hm</think>")
ANSWER = ("answer", r"<answer>It is \boxed{1}.</answer>")
SEARCH = ("search", "<search>q</search>")
PYTHON = ("python", "<python>1+1</python>")


def result(text: str = "found") -> tuple[str, str]:
    return "result", f"<result>{text}</result>"


def with_calls(number: int, tool: tuple[str, str] = SEARCH, status: str = "ok") -> dict[str, Any]:
    """Return columns of a trajectory with this number of calls of one tool."""
    parts = [part for _ in range(number) for part in (THINK, tool, result())]
    return {"parts": [*parts, THINK, ANSWER], "calls": [(tool[0], status)] * number}


def pool_row(
    key: str,
    question_key: str = "q1",
    parts: Sequence[tuple[str, str]] = (THINK, ANSWER),
    calls: Sequence[tuple[str, str]] = (),
    **columns: Any,
) -> dict[str, Any]:
    """Return a row of `pools` in text mode: right, initial and without calls unless `columns` say otherwise."""
    made = rollout(key, question_key, parts)
    ledger = [
        {"tool": tool, "argument": "x", "status": status, "turn": turn, "result_chars": 1}
        for turn, (tool, status) in enumerate(calls)
    ]
    made |= {
        "operator": "initial",
        "tool_calls": json.dumps(ledger),
        "calls_requested": len(ledger),
        "calls_executed": sum(status != "refused" for _, status in calls),
        "environment_digest": ENVIRONMENT.digest(),
        "correct": True,
        "score": 1.0,
        "edit_step": None,
    }
    for column in POOLS.schema:
        if column.name not in made:
            made[column.name] = "{}" if str(column.type) == "string" else 0
    made |= columns
    return {name: made[name] for name in POOLS.schema.names}


class Made(NamedTuple):
    """The outputs of the stage."""

    rows: list[dict[str, Any]]
    rejections: list[dict[str, Any]]
    metrics: dict[str, Any]
    report: str
    digest: str


def make_rows(
    tmp_path: Path,
    questions: Sequence[dict[str, Any]],
    pools: Sequence[dict[str, Any]],
    options: SftRowsOptions | None = None,
    run: Run | None = None,
    **settings: Any,
) -> Made:
    """Run the stage over these rows of `pools`; raises what the stage raises."""
    run = run or new_run(tmp_path)
    asked = put_rows(run, "1/questions", QUESTIONS, questions)
    made = put_rows(run, "1/pools", POOLS, pools)
    settings = {"environment": ENVIRONMENT, "options": options or SftRowsOptions(), **settings}
    record = execute(
        Instance(
            address=Address.parse("1/sft_rows"),
            stage=SFT_ROWS_STAGE,
            settings=SftRowsSettings(**settings),
            inputs={"pools": (made,), "questions": (asked,)},
        ),
        run,
    )
    rows = run.rows(record.outputs["sft_rows"])
    return Made(
        list(rows.rows()),
        list(run.rows(record.outputs["sft_rejections"]).rows()),
        dict(record.metrics),
        rows.read_file("report.md").decode(),
        record.outputs["sft_rows"].digest,
    )
