"""Export pools and rollouts in the format of the program published with arXiv 2601.06860, which import reads too."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from treadle.core.errors import ConfigError, RunError
from treadle.core.runs.address import Address
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.store.exported import new_folder, write_facts
from treadle.datagen.pools.tables import POOL_EVENTS, POOLS
from treadle.datagen.questions.tables import QUESTIONS
from treadle.environments.question.settings import QuestionSettings
from treadle.environments.registry import ENVIRONMENTS, require_question
from treadle.environments.rollouts.tables import ROLLOUTS
from treadle.eval.tables import SCORES
from treadle.formats.et_agent.records import ImportKind

_ASKED = ("question_key", "dataset", "question", "answers", "format")
_EVENTS = ("question_key", "round", "operator", "outcome", "reason")
_POOLED = ("question_key", "text", "prediction", "correct")
_SAMPLED = ("question_key", "rollout_key", "text", "tools", "status")
Row = Mapping[str, Any]


def export_records(
    run: Run, record: StageRecord, kind: ImportKind, target: Path, *, replace: bool = False
) -> dict[str, Any]:
    """Write a table of `pools` or `rollouts` as a JSON array with one object per question; return a summary.

    Raises RunError if the questions or scores do not match the table, ConfigError if `target` cannot be used (see
    `new_folder`), ArtifactError, StorageError.
    """
    make = _pools if kind == "pools" else _rollouts
    num_records = num_trajectories = 0
    with new_folder(target, replace=replace) as folder:
        with (folder / f"{kind}.json").open("w", encoding="utf-8") as file:
            file.write("[")
            for made in make(run, record):
                file.write(",\n" if num_records else "\n")
                file.write(json.dumps(made, ensure_ascii=False, indent=4, allow_nan=False))
                num_records += 1
                num_trajectories += len(made.get("evolve_trajectories_buffer", made.get("rollout_outputs", ())))
            file.write("\n]\n")
        facts = {
            "kind": kind,
            "format": "et-agent",
            "run": run.run_id,
            "instance": record.address,
            "digest": record.outputs[kind].digest,
            "num_records": num_records,
            "num_trajectories": num_trajectories,
        }
        write_facts(folder, facts)
    return {**facts, "folder": str(target)}


def _pools(run: Run, record: StageRecord) -> Iterator[dict[str, Any]]:
    events = defaultdict(list)
    for row in run.rows(record.outputs[POOL_EVENTS.kind]).rows(_EVENTS):
        why = f" ({row['reason']})" if row["reason"] else ""
        events[row["question_key"]].append(f"round {row['round']}: {row['operator']} {row['outcome']}{why}")
    for head, rows in _by_question(run, record, run.rows(record.outputs[POOLS.kind]).rows(_POOLED)):
        found = list(rows)
        yield {
            **head,
            "initial_output": "",
            "prediction": "",
            "initial_logs": [],
            "evolve_trajectories_buffer": [row["text"] for row in found],
            "evolve_predictions": [row["prediction"] for row in found],
            "evolve_trajectories_llm_judge_results": [row["correct"] is True for row in found],
            "evolve_judgements": events.get(found[0]["question_key"], []),
        }


def _rollouts(run: Run, record: StageRecord) -> Iterator[dict[str, Any]]:
    verdict_of = _verdicts(run, record)
    for head, rows in _by_question(run, record, run.rows(record.outputs[ROLLOUTS.kind]).rows(_SAMPLED)):
        found = list(rows)
        made = {
            **head,
            "rollout_outputs": [row["text"] for row in found],
            "finish": [row["status"] for row in found],
            "tool_counts": [_counts(row) for row in found],
        }
        if verdict_of is not None:
            verdicts = [verdict_of(row["rollout_key"]) for row in found]
            made["predictions"] = [one["prediction"] for one in verdicts]
            made["correctness"] = [one["score"] for one in verdicts]
        yield made


def _verdicts(run: Run, record: StageRecord) -> Callable[[str], Row] | None:
    """Return a lookup of verdicts by rollout key from the scores of these rollouts; None if there are no scores.

    Rollouts and scores have the same order, so keys must be looked up in order. If several instances scored the same
    table, for example in another iteration, the scores with the instance's own iteration and model are used.
    """
    place = Address.parse(record.address)
    own = str(Address(place.iteration, "scores", place.qualifier))
    ours = [
        scored
        for scored in run.records()
        if scored.stage == "scores"
        and any(ref.artifact == record.outputs[ROLLOUTS.kind] for ref in scored.inputs.get("rollouts", ()))
    ]
    if not ours:
        return None
    scored = next((one for one in ours if one.address == own), ours[0])
    rows = run.rows(scored.outputs[SCORES.kind]).rows(("rollout_key", "prediction", "score"))
    return partial(_next_verdict, rows, scored.address)


def _next_verdict(rows: Iterator[Row], address: str, key: str) -> Row:
    row = next(rows, None)
    if row is None or row["rollout_key"] != key:
        raise RunError(f"{address} has no score of rollout {key} at its place; run it again")
    return row


def _counts(row: Row) -> dict[str, int]:
    ran = {calls["tool"]: calls["executed"] for calls in row["tools"]}
    search, python = ran.get("search", 0), ran.get("python", 0)
    return {"search_times": search, "python_times": python, "total_times": search + python}


def _by_question(
    run: Run, record: StageRecord, rows: Iterator[dict[str, Any]]
) -> Iterator[tuple[dict[str, Any], Iterator[dict[str, Any]]]]:
    """Yield for each question the fields that objects of pools and of rollouts share, and the question's rows.

    Raises RunError for a question that the record's inputs lack.
    """
    environment = _environment(record)
    questions = {
        row["question_key"]: row for ref in record.inputs[QUESTIONS.kind] for row in run.rows(ref.artifact).rows(_ASKED)
    }
    for key, group in itertools.groupby(rows, lambda row: str(row["question_key"])):
        if (asked := questions.get(key)) is None:
            raise RunError(f"question {key} is not among those that {record.address} read")
        yield (
            {
                "instruction": environment.system_text_of(asked["format"]),
                "input": asked["question"],
                "answer": asked["answers"],
                "source": asked["dataset"],
            },
            group,
        )


def _environment(record: StageRecord) -> QuestionSettings:
    try:
        environment = ENVIRONMENTS.parse(record.settings["environment"])
    except (KeyError, TypeError, ValueError):
        raise ConfigError(
            f"{record.address} was made by another version, whose environment is not understood"
        ) from None
    return require_question(environment, "an export to et-agent")
