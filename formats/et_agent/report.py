"""Aggregate a run's rollouts per data set as the program published with arXiv 2601.06860 does.

Reads stored rows only, so that a model's scores can be compared with published ones; see `metrics.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from treadle.core.errors import DataError, RunError
from treadle.core.runs.address import Address
from treadle.core.runs.records import InputRef, StageRecord
from treadle.core.runs.run import Run
from treadle.core.store.exported import write_file
from treadle.eval.config import ScoresSettings
from treadle.eval.statistics import mean_of
from treadle.formats.et_agent.metrics import (
    LegacySample,
    legacy_conciseness,
    legacy_execution_score,
    legacy_math_equal,
    legacy_overall,
    legacy_results,
    legacy_sample,
    legacy_scored_text,
    legacy_successful_execution,
)
from treadle.tasks.summaries.report_tables import report_tables

SCORE_COLUMNS = (
    "rollout_key", "question_key", "model", "dataset", "domain", "prediction", "correct", "judge_status",
    "reasoning_tokens",
    "votes_yes", "votes_no",
)  # fmt: skip
ROLLOUT_COLUMNS = ("rollout_key", "text")
QUESTION_COLUMNS = ("question_key", "answers")

Row = Mapping[str, Any]


@dataclass(slots=True)
class _Group:
    """Samples of one model on one data set."""

    samples: list[LegacySample] = field(default_factory=list)
    executions: list[tuple[float, list[str]]] = field(default_factory=list)
    lengths: list[float | None] = field(default_factory=list)
    """Correctness divided by the number of reasoning tokens, of each sample; None if that number is unknown."""
    votes: list[tuple[int, int]] = field(default_factory=list)
    is_judged: bool = False


def legacy_report(
    scores: Iterable[Row], rollouts: Iterable[Row], questions: Iterable[Row]
) -> dict[str, dict[str, dict[str, float | str | None]]]:
    """Map model -> data set -> figures under the published program's names, without the date that it adds.

    `has_judge` of a score row tells whether judges decide about answers that the rule does not accept. If so,
    `llm_equal` is 1 if the answer was scored as correct, by rule or judge, or if it equals the first gold answer;
    judges are not asked about answers that the rule accepts. Without judges it is 0. Rows of `scores` and `rollouts`
    must be in the same order. Raise KeyError for a missing question, DataError if the rollouts do not match.
    """
    gold = {row["question_key"]: row["answers"] for row in questions}
    groups: dict[tuple[str, str], _Group] = {}
    for row, rollout in zip(scores, rollouts, strict=True):
        if row["rollout_key"] != rollout["rollout_key"]:
            raise DataError(
                f"the scores are not in the order of the rollouts ({row['rollout_key']} instead of "
                f"{rollout['rollout_key']}); run the stage scores again"
            )
        group = groups.setdefault((row["model"], row["dataset"]), _Group())
        _add(group, row, gold[row["question_key"]], rollout["text"])
    report: dict[str, dict[str, dict[str, float | str | None]]] = {}
    for (model, dataset), group in groups.items():
        report.setdefault(model, {})[dataset] = _figures(group)
    return report


def _add(group: _Group, row: Row, answers: list[str], output: str) -> None:
    sample = legacy_sample(
        row["prediction"],
        output,
        answers[0] if len(answers) == 1 else answers,
        "math" if row["domain"] == "math" else "qa",
    )
    if row["has_judge"]:
        text = legacy_scored_text(row["prediction"], output)
        equal = bool(text and answers) and legacy_math_equal(text, answers[0])
        sample = replace(sample, llm_equal=float(equal or row["correct"] is True))
    score = legacy_execution_score(sample, row["dataset"])
    tokens = row["reasoning_tokens"]
    group.samples.append(sample)
    group.executions.append((score, legacy_results(output)))
    group.lengths.append(None if tokens is None else score / max(tokens, 1))
    group.is_judged |= row["has_judge"]
    if row["votes_yes"] is not None:
        group.votes.append((row["votes_yes"], row["votes_no"]))


def _figures(group: _Group) -> dict[str, float | str | None]:
    execution, ratio = legacy_successful_execution(group.executions)
    known = [length for length in group.lengths if length is not None]
    return {
        **legacy_overall(group.samples, judged=group.is_judged),
        "successful_execution": execution,
        "correct_call_ratio": ratio,
        "reasoning_length": mean_of(known) if len(known) == len(group.lengths) else None,
        "conciseness": legacy_conciseness(group.votes) if group.votes else None,
    }


def export_report(run: Run, record: StageRecord, target: Path, *, replace: bool = False) -> dict[str, Any]:
    """Write the figures as JSON into a file; return a summary. Raises as `report_of_run` and `write_file` do."""
    content = orjson.dumps(report_of_run(run, record), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    write_file(target, content, replace=replace)
    return {"file": str(target), "format": "et-agent", "instance": record.address, "bytes": len(content)}


def report_of_run(run: Run, record: StageRecord) -> dict[str, Any]:
    """Return the figures from the scores that a report read; raise RunError if the scores were replaced since."""
    scores = report_tables(record)
    makers = [_maker(run, ref) for ref, _ in scores]
    rollouts = [ref.artifact for maker in makers for ref in maker.inputs["rollouts"]]
    questions = dict.fromkeys(ref.artifact for maker in makers for ref in maker.inputs["questions"])
    return legacy_report(
        _scored(run, scores, makers),
        itertools.chain.from_iterable(run.rows(artifact).rows(ROLLOUT_COLUMNS) for artifact in rollouts),
        itertools.chain.from_iterable(run.rows(artifact).rows(QUESTION_COLUMNS) for artifact in questions),
    )


def _scored(
    run: Run, tables: Sequence[tuple[InputRef, str]], makers: Sequence[StageRecord]
) -> Iterator[dict[str, Any]]:
    """Yield rows of scores with the model names of the report, and whether judges can decide about them."""
    for (ref, prefix), maker in zip(tables, makers, strict=True):
        judges = ScoresSettings.model_validate(maker.settings).options.judges
        domains = judges.domains if judges.models and judges.NEEDS_ANSWERS else ()
        for row in run.rows(ref.artifact).rows(SCORE_COLUMNS):
            has_judge = row["judge_status"] is not None or row["domain"] in domains
            yield {**row, "model": prefix + row["model"], "has_judge": has_judge}


def _maker(run: Run, ref: InputRef) -> StageRecord:
    """Return the record of the instance that made an input; raise RunError if it was run again since the report."""
    made = run.record(Address.parse(ref.address))
    if made is None or made.outputs.get(ref.artifact.kind) != ref.artifact:
        raise RunError(f"{ref.address} has been rerun since the report; run the report again")
    return made
