"""Find the problems of scored rollouts in their stored table: counts first, gold answers only if there is a problem."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.environments.diagnosis.diagnosis import Diagnosis, Example, cut_start
from treadle.environments.diagnosis.facts import FAILED
from treadle.environments.diagnosis.problem import Problem
from treadle.environments.diagnosis.score_causes import SCORE_PROBLEMS
from treadle.environments.diagnosis.score_facts import JudgeCounts, ScoreFacts, form_marks
from treadle.environments.diagnosis.stored import counted_columns, groups_of, questions_of

_MAX_READ = 200
"""Maximum number of answers of a group that are compared with their gold answers to find causes."""
_NUM_EXAMPLES = 3
_ANSWERED = "answered"
_COLUMNS = (
    "rollout_key", "question_key", "dataset", "model", "status", "prediction", "is_valid_answer", "correct", "score",
    "is_reward", "error", "judge_status", "judges",
)  # fmt: skip

Row = Mapping[str, Any]


def score_diagnoses(record: StageRecord, run: Run) -> Iterator[Diagnosis]:
    """Yield the problems of the scores of a record. Raise TreadleError or KeyError if its tables cannot be read."""
    if (table := counted_columns(run, record.outputs["scores"], _COLUMNS)) is None:
        return
    told: set[str] = set()
    for dataset, group in groups_of(table):
        rows = group.to_pylist()
        for problem in SCORE_PROBLEMS.problems_of(_counts(rows)):
            if problem.name not in told:
                told |= {problem.name} if not dataset else set()
                yield _diagnosis(record, run, dataset, rows, problem)


def _has_answered(row: Row) -> bool:
    """Return whether a rollout ended with an answer, even an empty one, or has a candidate that is taken as one."""
    return row["status"] == _ANSWERED or bool(row["is_valid_answer"])


def _counts(rows: Sequence[Row], **more: Any) -> ScoreFacts:
    """Return the facts of a group that need no gold answers."""
    own = [row for row in rows if row["status"] != FAILED]
    answered = [row for row in own if _has_answered(row) and not row["is_reward"]]
    undecided = [row for row in own if row["correct"] is None]
    rewards = [row for row in own if row["is_reward"] and row["score"] is not None]
    errors = Counter(row["error"] for row in undecided if row["error"])
    return ScoreFacts(
        statuses=dict(Counter(row["status"] for row in rows).most_common()),
        num=len(own),
        num_questions=len({row["question_key"] for row in own}),
        num_answered=len(answered),
        num_empty=sum(not row["is_valid_answer"] for row in answered),
        num_right=sum(row["correct"] is True for row in own),
        num_undecided=len(undecided),
        num_judge_failed=sum(row["judge_status"] == "failed" for row in undecided),
        common_error=cut_start(errors.most_common(1)[0][0]) if errors else "",
        answers=_some(row["prediction"].strip() for row in answered if row["is_valid_answer"]),
        num_rewards=len(rewards),
        rewards=_some(row["score"] for row in rewards),
        num_successes=sum(row["correct"] is True for row in rewards),
        judges=_judges(own),
        **more,
    )


def _some(values: Iterator[Any]) -> frozenset[Any]:
    """Return up to two distinct values, which is enough to see whether all values are equal."""
    found: set[Any] = set()
    for value in values:
        found.add(value)
        if len(found) == 2:
            break
    return frozenset(found)


def _judges(rows: Sequence[Row]) -> dict[str, JudgeCounts]:
    verdicts, grades = Counter[tuple[str, bool]](), dict[str, Counter[float]]()
    for row in rows:
        for judge, said in orjson.loads(row["judges"]).items() if row["judges"] != "{}" else ():
            if said.get("grade") is not None:
                grades.setdefault(judge, Counter())[said["grade"]] += 1
            elif said["verdict"] is not None:
                verdicts[judge, said["verdict"]] += 1
    return {
        judge: JudgeCounts(
            verdicts[judge, True],
            verdicts[judge, False],
            grades.get(judge, Counter[float]()).total(),
            frozenset(grades.get(judge, ())),
        )
        for judge in sorted({judge for judge, _ in verdicts} | grades.keys())
    }


def _diagnosis(
    record: StageRecord, run: Run, dataset: str, rows: Sequence[Row], problem: Problem[ScoreFacts]
) -> Diagnosis:
    """Return the diagnosis of a problem, with causes and examples from rollouts that have it."""
    read = [row for row in rows if _has(row, problem.name)][:_MAX_READ]
    names = ("question", "answers", "choices")
    questions = questions_of(record, run, [row["question_key"] for row in read], names)
    marks: Counter[str] = Counter()
    for row in read:
        asked = questions.get(row["question_key"], {})
        marks.update(form_marks(row["prediction"], asked.get("answers", ()), asked.get("choices", ())))
    facts = _counts(rows, num_read=len(read), marks=marks)
    examples = tuple(_example(row, questions.get(row["question_key"], {})) for row in read[:_NUM_EXAMPLES])
    rollouts = record.inputs.get("rollouts", ())
    return Diagnosis(
        address=record.address,
        rollouts=rollouts[0].address if rollouts else "",
        model=rows[0]["model"],
        dataset=dataset,
        problem=problem.name,
        summary=problem.sentence(facts),
        endings=facts.statuses,
        asked="",
        causes=tuple(SCORE_PROBLEMS.causes_of(problem, facts)),
        examples=examples,
    )


def _example(row: Row, asked: Row) -> Example:
    return Example(
        row["rollout_key"],
        cut_start(asked.get("question", "")),
        row["status"],
        cut_start(row["prediction"]),
        cut_start(" | ".join(asked.get("answers", ()))),
    )


def _has(row: Row, problem: str) -> bool:
    """Return whether a rollout has the problem with this name, and so can be an example of it."""
    if row["status"] == FAILED:
        return False
    match problem:
        case "no_verdict":
            return row["correct"] is None
        case "empty_answers":
            return row["status"] == _ANSWERED and not row["is_valid_answer"]
        case "same_reward":
            return bool(row["is_reward"])
        case "same_verdict":
            return bool(row["judges"] != "{}")
    return bool(row["is_valid_answer"])
