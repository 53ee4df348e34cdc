"""Problems of scores follow from their stored rows and the gold answers of their questions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables.problem_runs import answers, scored_run
from support.tables.score_tables import score

from treadle.core.runs.address import Address
from treadle.core.runs.run import Run
from treadle.environments.diagnosis.diagnosis import Diagnosis
from treadle.environments.diagnosis.reading import all_diagnoses, diagnoses_of
from treadle.environments.diagnosis.score_causes import SCORE_PROBLEMS
from treadle.environments.diagnosis.score_facts import JudgeCounts, ScoreFacts, form_marks


def problems(run: Run) -> list[Diagnosis]:
    record = run.record(Address.parse("1/scores@base"))
    assert record is not None
    return diagnoses_of(record, run)


NUMBERS = [str(number) for number in range(10, 20)]
SOLUTION = "First we add two and two. " * 8 + "So it is 4."


@pytest.mark.parametrize(
    ("rows", "gold", "choices", "words"),
    [
        (answers(*NUMBERS), "B", (), "choices_field"),
        (answers(*"ABCDABCD"), "2", ("1", "2"), "choice_index"),
        (answers(*NUMBERS), '["4", "5"]', (), "json_list"),
        (answers(*NUMBERS), SOLUTION, (), "boxed_solution"),
        (answers(*(f"I think that the answer is 44, of {one}" for one in NUMBERS)), "44", (), "the answer alone"),
        (answers(*NUMBERS), "4", (), "compare them below"),
    ],
)  # fmt: skip
def test_gold_answers_of_another_form_are_named(
    tmp_path: Path, rows: list[dict[str, Any]], gold: str, choices: Sequence[str], words: str
) -> None:
    (found,) = problems(scored_run(tmp_path, rows, gold, choices))
    assert (found.problem, found.rollouts, found.model) == ("none_right", "1/rollouts@base", "base")
    assert words in " ".join(found.causes) and len(found.examples) == 3
    assert found.examples[0].gold[:20] == gold[:20] and found.examples[0].question == "question q0?"


def judged(verdict: bool | None, grade: float | None = None) -> dict[str, Any]:
    said = {"verdict": verdict, "status": "parsed", "raw": []} | ({} if grade is None else {"grade": grade})
    return {"judges": json.dumps({"large": said}), "judge_status": "parsed"}


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        (answers(*["7"] * 10), ["same_answer", "none_right"]),
        (answers(*["7"] * 10, correct=True), ["same_answer"]),
        (answers(*[""] * 6, *NUMBERS[:4], correct=True), ["empty_answers"]),
        (answers(*NUMBERS, correct=None, judge_status="failed", scorer="judge"), ["no_verdict"]),
        (answers(*NUMBERS, correct=True, **judged(True)), ["same_verdict"]),
        (answers(*NUMBERS, correct=True, **judged(None, 0.5)), ["same_verdict"]),
        (answers(*NUMBERS, correct=True, **judged(False)), []),
        (answers(*NUMBERS, scorer="environment", is_reward=True, status="finished"), ["same_reward"]),
        (answers(*NUMBERS, correct=True, scorer="environment", status="finished"), []),
        (answers(*NUMBERS, correct=True), []),
        (answers(*NUMBERS[:7]), []),
        (answers(*NUMBERS, status="failed"), []),
    ],
)  # fmt: skip
def test_problems_follow_from_the_rows(tmp_path: Path, rows: list[dict[str, Any]], names: list[str]) -> None:
    found = problems(scored_run(tmp_path, rows))
    assert [one.problem for one in found] == names
    assert all(one.causes and len(one.examples) == 3 for one in found)


def test_problem_of_one_data_set_names_it(tmp_path: Path) -> None:
    rows = answers(*NUMBERS)
    good = [score(f"g{number}", f"g{number}", True, dataset="good", prediction=str(number)) for number in range(10)]
    run = scored_run(tmp_path, [*rows, *good])
    (found,) = problems(run)
    assert (found.dataset, found.problem) == ("world", "none_right") and found.headline.startswith("world: none of 10")
    assert [one.address for one in all_diagnoses(run.records(), run)] == ["1/scores@base"]


def test_rejecting_judge_is_a_cause_but_no_problem() -> None:
    facts = ScoreFacts(
        statuses={"answered": 9}, num=9, num_answered=9, answers=frozenset("ab"), judges={"j": JudgeCounts(0, 9)}
    )
    (problem,) = SCORE_PROBLEMS.problems_of(facts)
    assert "The judges reject every answer" in " ".join(SCORE_PROBLEMS.causes_of(problem, facts))


@given(st.text(), st.lists(st.text(), max_size=3), st.lists(st.text(), max_size=2))
def test_any_texts_have_marks(prediction: str, gold: list[str], choices: list[str]) -> None:
    assert form_marks(prediction, gold, choices) <= {
        "no_gold", "gold_letter", "gold_option", "gold_list", "gold_long", "answer_long", "holds_gold",
    }  # fmt: skip


def test_every_cause_belongs_to_a_problem() -> None:
    named = {name for cause in SCORE_PROBLEMS.causes for name in cause.problems}
    assert named == {problem.name for problem in SCORE_PROBLEMS.problems}
