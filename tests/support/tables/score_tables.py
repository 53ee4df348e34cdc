"""Small stages that write given rows, so that scoring and reporting run on real artifacts of a real run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from treadle.agent.contract import Task
from treadle.core.config import Section
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance, Stage, StageContext
from treadle.core.tables import TABLES, Table, part_items
from treadle.datagen.questions.tables import QUESTIONS
from treadle.environments.rollouts.tables import ROLLOUTS
from treadle.eval.answers import Gold
from treadle.eval.config import ScoresOptions, ScoresSettings
from treadle.eval.entry import SCORES_STAGE
from treadle.stages.registry import stage_entries

_EMPTY = {"string": "", "bool": False, "int32": 0, "int64": 0}
WITHOUT_ALGEBRA = ScoresOptions(symbolic=False)

stage_entries()


class GivenRows(Section):
    """Rows by kind of table, as JSON text."""

    rows: str
    environment: dict[str, str] = {}
    """Environment in the settings of the instance, as far as a test needs one."""
    environments: dict[str, dict[str, str]] = {}
    """Further ones by name."""


def new_run(root: Path) -> Run:
    return Run.create(root, "test", {}, {})


def put_rows(run: Run, address: str, table: Table, rows: Sequence[Mapping[str, Any]]) -> Address:
    """Make the instance at `address` hold these rows."""
    return put_tables(run, address, {table.kind: rows})


def put_tables(run: Run, address: str, rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> Address:
    """Make the instance at `address` hold these tables: kind -> rows."""
    place = Address.parse(address)

    def write(context: StageContext) -> dict[str, Any]:
        for kind, given in json.loads(context.settings.rows).items():
            context.write(kind, given)
        return {}

    produced = tuple(TABLES[kind] for kind in rows)
    stage = Stage(name=place.stage, version=1, settings=GivenRows, produces=produced, run=write)
    settings = GivenRows(rows=json.dumps({kind: list(given) for kind, given in rows.items()}))
    execute(Instance(address=place, stage=stage, settings=settings), run)
    return place


def question(key: str, answers: Sequence[str], domain: str = "qa", choices: Sequence[str] = ()) -> dict[str, Any]:
    """Return a row of `questions`."""
    return {
        "question_key": key,
        "dataset": "world",
        "domain": domain,
        "question": f"question {key}?",
        "answers": list(answers),
        "choices": list(choices),
        "split": "heldout",
        "source_file": "world.jsonl",
        "source_row": 1,
        "meta": "{}",
        "format": None,
        "scorer": None,
        "search": None,
        "payload": "{}",
        "environment": "default",
    }


NO_IDS = {"training_prompt_ids": None} | {name: [] for name in ("prompt_ids", "ids", "origins", "turn_starts", "spans")}
"""Sample of a rollout in text mode."""


def rollout(key: str, question_key: str, segments: Sequence[tuple[str, str]], **columns: Any) -> dict[str, Any]:
    """Return a row of `rollouts` with these segments, answered without calls unless `columns` say otherwise."""
    row: dict[str, Any] = {
        "rollout_key": key,
        "question_key": question_key,
        "dataset": "world",
        "domain": "qa",
        "model": "base",
        "sample_index": 0,
        "operator": "rollout",
        "parents": [],
        "round": 0,
        "seed": 0,
        "status": "answered",
        "truncated": False,
        "error": None,
        "text": "".join(text for _, text in segments),
        "segments": json.dumps([{"kind": kind, "text": text, "start": 0, "end": 0} for kind, text in segments]),
        "tool_calls": "[]",
        "tool_schemas": "[]",
        "samples": [NO_IDS],
        "reward": None,
        "outcome": None,
        "environment": "default",
    }
    for column in ROLLOUTS.schema:
        if column.name not in row:
            row[column.name] = None if column.nullable else _EMPTY.get(str(column.type), [])
    return {**row, **columns}


def sample(origins: Sequence[int]) -> dict[str, Any]:
    """Return an item of the column `samples`, with a prompt of one id and these origins."""
    ids = [5] * len(origins)
    return {
        "prompt_ids": [1],
        "training_prompt_ids": None,
        "ids": ids,
        "origins": list(origins),
        "turn_starts": [],
        "spans": [],
    }


def called(**tools: int) -> dict[str, Any]:
    """Return the columns of a rollout that made these numbers of calls, all of which ran."""
    counts = [{"tool": tool, "requested": num, "executed": num, "failed": 0} for tool, num in sorted(tools.items())]
    num_calls = sum(tools.values())
    return {"calls_requested": num_calls, "calls_executed": num_calls, "tools": counts}


def gold(answers: Sequence[str], choices: Sequence[str], rule: str, asked: str = "") -> Gold:
    """Return the gold answers of a question."""
    return Gold(Task("q1", asked, tuple(choices), domain=rule, answers=tuple(answers)), asked)


ANSWER_PARTS = ("em", "acc", "f1", "f1_legacy")


def parts_of(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the parts in a row of `scores`."""
    return {part["name"]: part["value"] for part in row["parts"]}


def score(key: str, question_key: str, correct: bool | None, **columns: Any) -> dict[str, Any]:
    """Return a row of `scores`; `columns` may also have parts of an answer."""
    value = None if correct is None else float(correct)
    is_reward = columns.get("scorer") == "environment"
    parts = {} if is_reward else {name: columns.pop(name, value or 0.0) for name in ANSWER_PARTS}
    return {
        "rollout_key": key,
        "question_key": question_key,
        "dataset": "world",
        "domain": "qa",
        "model": "base",
        "sample_index": 0,
        "environment": "default",
        "status": "answered",
        "truncated": False,
        "num_turns": 1,
        "prediction": "x",
        "is_valid_answer": True,
        "correct": correct,
        "score": value,
        "is_reward": is_reward,
        "parts": part_items(parts),
        "scorer": "qa_em",
        "error": "broken" if correct is None else None,
        "detail": None,
        "efficiency": value,
        "calls_requested": 0,
        "calls_executed": 0,
        "tools": [],
        "failed_calls": 0,
        "prompt_tokens": 100,
        "completion_tokens": 10,
        "reasoning_tokens": 10,
        "output_chars": 40,
        "judge_status": None,
        "judges": "{}",
        "votes_yes": None,
        "votes_no": None,
        "votes_abstained": None,
        "best_of": None,
        **columns,
    }


def score_rows(
    tmp_path: Path,
    questions: list[dict[str, Any]],
    rollouts: list[dict[str, Any]],
    settings: ScoresSettings | ScoresOptions = WITHOUT_ALGEBRA,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Run the stage `scores` over these rows; its rows and its metrics."""
    if isinstance(settings, ScoresOptions):
        settings = ScoresSettings(options=settings)
    run = new_run(tmp_path)
    asked = put_rows(run, "1/questions", QUESTIONS, questions)
    made = put_rows(run, "1/rollouts@base", ROLLOUTS, rollouts)
    record = execute(
        Instance(
            address=Address.parse("1/scores@base"),
            stage=SCORES_STAGE,
            settings=settings,
            inputs={"rollouts": (made,), "questions": (asked,)},
        ),
        run,
    )
    return list(run.rows(record.outputs["scores"]).rows()), dict(record.metrics)
