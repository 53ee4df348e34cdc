"""Export answers as JSON Lines in the form of published evaluations on the web (arXiv 2508.13167): one per rollout.

Rollouts without an answer have a line, too: leaving them out would overstate the accuracy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from treadle.core.errors import RunError
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.store.exported import new_folder, write_facts
from treadle.tasks.analysis.run_tables import records_with, scored_of
from treadle.tasks.analysis.trajectories import FollowingRows

FILE = "answers.jsonl"

_ROLLOUT = (
    "rollout_key", "question_key", "model", "dataset", "sample_index", "status", "error", "segments", "text",
)  # fmt: skip
_VERDICT = ("rollout_key", "prediction", "is_valid_answer", "correct", "judge_status", "judges")
_IDS = ("question_id", "id", "task_id", "_id")
_LEVELS = ("Level", "level", "difficulty")
_ERRORS = ("failed", "timeout", "context_full", "filtered", "budget")
"""Statuses of rollouts that are exported as `error`: they did not end because of an invalid format."""
_COMPLETED = ("answered", "finished")


def export_answers(run: Run, target: Path, *, model: str | None = None, replace: bool = False) -> dict[str, Any]:
    """Write the answers of all rollouts that `scores` covers, or of one model, into a new folder; return a summary.

    Raises RunError if there are none, DataError and ArtifactError for damaged files, ConfigError and StorageError as
    `new_folder` does.
    """
    num_rows = num_completed = 0
    with new_folder(target, replace=replace) as folder:
        with (folder / FILE).open("wb") as file:
            for record in records_with(run, "rollouts", None):
                for row in _records(run, record, model):
                    file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
                    num_rows += 1
                    num_completed += row["status"] == "completed"
        if not num_rows:
            raise RunError(
                f"run {run.run_id} has no scored rollouts{'' if model is None else f' of {model!r}'}; "
                "run the stage scores first"
            )
        facts = {"kind": "answers", "run": run.run_id, "num_rows": num_rows, "num_completed": num_completed}
        write_facts(folder, facts)
    return {**facts, "file": str(target / FILE)}


def _records(run: Run, record: StageRecord, model: str | None) -> Iterator[dict[str, Any]]:
    """Yield the lines of the rollouts of one instance; none if they are not scored."""
    if (scored := scored_of(run, record)) is None:
        return
    questions = {
        row["question_key"]: row
        for ref in record.inputs.get("questions", ())
        for row in run.rows(ref.artifact).rows(("question_key", "question", "answers", "meta"))
    }
    verdicts = FollowingRows(run.rows(scored.outputs["scores"]).batches(_VERDICT), f"scores of {record.address}")
    for batch in run.rows(record.outputs["rollouts"]).batches(_ROLLOUT):
        rows = batch.to_pylist()
        found = verdicts.take([row["rollout_key"] for row in rows])
        for row in rows:
            if model in (None, row["model"]):
                yield answer_record(row, questions[row["question_key"]], found[row["rollout_key"]])


def answer_record(
    rollout: Mapping[str, Any], question: Mapping[str, Any], verdict: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the line of one rollout, from its rows of `rollouts`, `questions` and `scores`."""
    meta: dict[str, Any] = orjson.loads(question["meta"])
    is_completed = bool(verdict["is_valid_answer"]) or rollout["status"] in _COMPLETED
    status = "completed" if is_completed else "error" if rollout["status"] in _ERRORS else "invalid_format"
    answers = list(question["answers"])
    return {
        "question_id": next((str(meta[name]) for name in _IDS if meta.get(name) is not None), rollout["question_key"]),
        "question": question["question"],
        "Level": next((meta[name] for name in _LEVELS if meta.get(name) is not None), None),
        "golden_answer": answers[0] if len(answers) == 1 else answers,
        "prediction": verdict["prediction"] if verdict["is_valid_answer"] else None,
        "llm_judge": _judged(verdict),
        "steps": _steps(orjson.loads(rollout["segments"])),
        "status": status,
        "error": None if is_completed else rollout["error"] or rollout["status"],
        "raw": rollout["text"],
        "correct": verdict["correct"],
        "round": rollout["sample_index"] + 1,
        "model": rollout["model"],
        "dataset": rollout["dataset"],
    }


def _judged(verdict: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the judges' verdict and replies; None if none was asked. A missing verdict is null, never incorrect."""
    if verdict["judge_status"] is None:
        return None
    said = orjson.loads(verdict["judges"])
    is_decided = verdict["judge_status"] == "parsed" and verdict["correct"] is not None
    word = ("correct" if verdict["correct"] else "incorrect") if is_decided else None
    return {"judgement": word, "replies": {name: one["raw"] for name, one in said.items()}}


def _steps(segments: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return type and content of each segment; empty ones are left out.

    The type of a tagged block is its tag, which is removed from the content; the type of other segments is their kind.
    """
    steps = []
    for segment in segments:
        kind, text = segment["kind"], segment["text"].strip()
        opening, has_tag, rest = text.partition(">")
        name = opening.removeprefix("<")
        if has_tag and opening.startswith("<") and rest.endswith(f"</{name}>"):
            kind, text = name, rest.removesuffix(f"</{name}>").strip()
        if text:
            steps.append({"type": kind, "content": text})
    return steps
