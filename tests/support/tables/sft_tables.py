"""Rows of `sft_rows`, and runs that hold them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.tables.score_tables import new_run, put_rows

from treadle.core.runs.run import Run
from treadle.core.store.artifact_reader import ArtifactReader
from treadle.datagen.sft_rows.tables import SFT_ROWS


def as_messages(*pairs: tuple[str, str]) -> str:
    """Return the column `messages` for pairs of role and content."""
    return json.dumps([{"role": role, "content": content} for role, content in pairs])


def contents(row: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the pairs of role and content of a row."""
    return [(message["role"], message["content"]) for message in json.loads(row["messages"])]


def sft_row(
    key: str, *, prompt: int = 3, said: int = 4, results: int = 0, operator: str = "initial", **columns: Any
) -> dict[str, Any]:
    """Return a row whose turn has these numbers of result tokens and of model tokens; without results by default."""
    ids = list(range(10, 10 + prompt + results + said))
    labels = [-100] * (prompt + results) + ids[prompt + results :]
    made: dict[str, Any] = {
        "rollout_key": key,
        "question_key": f"q-{key}",
        "dataset": "world",
        "domain": "qa",
        "model": "base",
        "operator": operator,
        "parents": [],
        "round": 0,
        "repaired": False,
        "messages": as_messages(
            ("system", "Answer."),
            ("user", f"question {key}?"),
            ("assistant", f"<think>{key}</think><answer>\\boxed{{1}}</answer>"),
        ),
        "tool_schemas": "[]",
        "input_ids": ids,
        "labels": labels,
        "num_tokens": len(ids),
        "num_prompt_tokens": prompt,
        "num_result_tokens": results,
        "num_message_tokens": 0,
        "num_target_tokens": said,
        "calls_requested": 2,
        "calls_executed": 1,
        "tools": [{"tool": "search", "requested": 2, "executed": 1, "failed": 0}],
        "environment_digest": "e",
        "tokenizer_digest": "t",
    }
    return made | columns


TEXT_MODE: dict[str, Any] = {
    "input_ids": [], "labels": [], "num_tokens": 0, "num_prompt_tokens": 0, "num_result_tokens": 0,
    "num_message_tokens": 0, "num_target_tokens": 0, "tokenizer_digest": "",
}  # fmt: skip
"""Columns of a row that was made in text mode."""


def run_with_rows(root: Path, rows: Sequence[dict[str, Any]]) -> Run:
    """Return a run `test` whose `1/sft_rows` holds these rows."""
    run = new_run(root)
    put_rows(run, "1/sft_rows", SFT_ROWS, rows)
    return run


def table_of(root: Path, rows: Sequence[dict[str, Any]]) -> ArtifactReader:
    """Return the same rows as a table that can be read."""
    run = run_with_rows(root, rows)
    return run.rows(run.records()[0].outputs["sft_rows"])
