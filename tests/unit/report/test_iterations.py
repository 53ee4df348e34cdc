"""A report over several iterations: every model once, labelled by iteration if its scores differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from support.tables.score_tables import new_run, put_rows, question, rollout, score

from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance
from treadle.datagen.questions.tables import QUESTIONS
from treadle.demo.results import differences, outcome
from treadle.environments.rollouts.tables import ROLLOUTS
from treadle.eval.config import ReportSettings
from treadle.eval.tables import SCORES
from treadle.report.entry import REPORT_STAGE
from treadle.report.summary import label_prefixes
from treadle.tasks.page.build import report_page
from treadle.tasks.page.models import evaluated_models
from treadle.tasks.page.sources import PageRun
from treadle.tasks.summaries.report_tables import report_tables

VERDICTS = {
    "base": ([False, False, False, True],) * 3,
    "tuned": ([False, False, True, True], [False, True, True, True], [True, True, True, True]),
}


def rows_of(model: str, verdicts: list[bool]) -> list[dict[str, Any]]:
    return [score(f"{model}-{index}", f"q{index}", verdict, model=model) for index, verdict in enumerate(verdicts)]


def scores_of(address: str, digest: str) -> tuple[Address, str]:
    return Address.parse(address), digest


def test_unchanged_results_appear_once_and_others_by_iteration() -> None:
    tables = [
        scores_of("1/scores@base", "b"),
        scores_of("1/scores@tuned", "t"),
        scores_of("2/scores@base", "b"),
        scores_of("2/scores@tuned", "u"),
        scores_of("3/scores@base", "b"),
        scores_of("3/scores@tuned", "u"),
    ]
    assert label_prefixes(tables) == ["", "1/", None, "2/", None, None]
    assert label_prefixes(tables[:2]) == ["", ""]
    one_model = [scores_of("1/scores@one", "x"), scores_of("1/scores@two", "x")]
    assert label_prefixes(one_model) == ["", ""], "models that are one are asked for as two"


def made(run: Run, last: int, joins: Mapping[str, int] = MappingProxyType({})) -> None:
    """`<last>/report`, from the scores of all iterations before; `joins`: model -> the first one that has it."""
    inputs = []
    for iteration in range(1, last + 1):
        for model, verdicts in VERDICTS.items():
            if iteration < joins.get(model, 1):
                continue
            rows = rows_of(model, list(verdicts[iteration - 1]))
            asked = [question(row["question_key"], ["x"]) for row in rows]
            put_rows(run, f"{iteration}/questions", QUESTIONS, asked)
            given = [rollout(row["rollout_key"], row["question_key"], []) for row in rows]
            put_rows(run, f"{iteration}/rollouts@{model}", ROLLOUTS, given)
            inputs.append(put_rows(run, f"{iteration}/scores@{model}", SCORES, rows))
    report_of(run, last, inputs)


def report_of(run: Run, last: int, inputs: Sequence[Address]) -> None:
    item = Instance(
        address=Address(last, "report"),
        stage=REPORT_STAGE,
        settings=ReportSettings(bootstrap_samples=100),
        inputs={"scores": tuple(inputs)},
    )
    execute(item, run)


def models_of(run: Run, last: int) -> set[str]:
    record = run.record(Address(last, "report"))
    assert record is not None
    return {row["model"] for row in run.rows(record.outputs["summary"]).rows()}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    found = new_run(tmp_path)
    made(found, 3)
    return found


def test_iteration_report_has_all_models_up_to_it(run: Run) -> None:
    record = run.record(Address(3, "report"))
    assert record is not None
    rows = [row for row in run.rows(record.outputs["summary"]).rows() if row["figure"] == "accuracy"]
    assert [(row["model"], row["value"]) for row in rows] == [
        ("base", 0.25), ("1/tuned", 0.5), ("2/tuned", 0.75), ("3/tuned", 1.0),
    ]  # fmt: skip
    compared = {(row["first"], row["second"]) for row in run.rows(record.outputs["comparisons"]).rows()}
    assert compared >= {("base", "3/tuned"), ("2/tuned", "3/tuned")}


@pytest.mark.parametrize(
    ("joins", "names"),
    [
        ({"tuned": 2}, {"base", "2/tuned", "3/tuned"}),
        ({"base": 2}, {"base", "1/tuned", "2/tuned", "3/tuned"}),
        ({"tuned": 3}, {"base", "tuned"}),
    ],
)
def test_model_of_later_iterations_is_labelled_with_its_own(
    tmp_path: Path, joins: dict[str, int], names: set[str]
) -> None:
    run = new_run(tmp_path)
    made(run, 3, joins)
    record = run.record(Address(3, "report"))
    assert record is not None and models_of(run, 3) == names
    tables = {prefix + (Address.parse(ref.address).qualifier or "") for ref, prefix in report_tables(record)}
    assert tables == names, "who reads the report's record calls them as the report does"


def test_first_report_uses_plain_model_names(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    made(run, 1)
    assert models_of(run, 1) == {"base", "tuned"}


def test_report_is_not_reused_for_the_same_scores_of_other_iterations(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    for last in (2, 4):
        rows = [(last - 1 + place, rows_of("tuned", list(VERDICTS["tuned"][place]))) for place in (0, 1)]
        report_of(run, last, [put_rows(run, f"{number}/scores@tuned", SCORES, own) for number, own in rows])
    assert (models_of(run, 2), models_of(run, 4)) == ({"1/tuned", "2/tuned"}, {"3/tuned", "4/tuned"})


def test_page_finds_the_rollouts_of_every_label(run: Run) -> None:
    models = evaluated_models([PageRun(run)])
    right = {model.name: sum(bool(rollout.correct) for rollout in model.rollouts) for model in models}
    assert right == {"base": 1, "1/tuned": 2, "2/tuned": 3, "3/tuned": 4}
    assert b"3/tuned" in report_page([run])


def test_demo_shows_the_model_of_each_iteration(run: Run) -> None:
    shown = outcome(run, ["base", "tuned"])
    right = {str(row[0]): (row[1], str(row[2]).partition(" [")[0]) for row in shown.rows}
    assert right == {
        "base (SmolLM2-135M)": (4, "25.0"),
        "tuned (the same, fine-tuned)": (4, "50.0"),
        "tuned (the same, fine-tuned), iteration 2": (4, "75.0"),
        "tuned (the same, fine-tuned), iteration 3": (4, "100.0"),
    }, "the base is the same in all of them"


def test_demo_says_the_number_of_the_report(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    sizes = {"few": 2, "many": 8}
    rows = [
        score(f"{dataset}-{index}", f"{dataset}-{index}", dataset == "few", dataset=dataset, is_valid_answer=index > 0)
        for dataset, number in sizes.items()
        for index in range(number)
    ]
    report_of(run, 1, [put_rows(run, "1/scores@base", SCORES, rows)])
    shown = outcome(run, ["base", "tuned"])
    ((name, number, right, ended, calls),) = shown.rows
    assert (number, str(right).partition(" [")[0], ended, calls) == (10, "50.0", "68.8", "-"), "not 2 of 10"
    assert "all: mean over 2 data sets" in shown.note
    assert str(right) in report_page([run]).decode()


def test_demo_shows_what_each_training_changed_by_question(run: Run) -> None:
    rows = differences(run, ["tutor", "base", "tuned"]).rows
    assert [row[0] for row in rows] == [
        "base to tuned", "tuned to tuned, iteration 2", "tuned, iteration 2 to tuned, iteration 3",
    ]  # fmt: skip
    assert [row[2:4] for row in rows] == [(1, 0), (1, 0), (1, 0)]
    assert all(str(row[1]).startswith("+25 (") and row[4] == "1.000" for row in rows), "one in four is chance"


def test_change_is_distinguished_from_chance_by_its_interval(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    told = {"base": [False] * 20, "tuned": [True] * 15 + [False] * 5, "reinforced": [False] + [True] * 17 + [False] * 2}
    for model, verdicts in told.items():
        put_rows(run, f"1/scores@{model}", SCORES, rows_of(model, verdicts))
    tuned, reinforced = differences(run, told).rows
    assert tuned[1:] == ("+75 (+47 to +89)", 15, 0, "< 0.001")
    assert reinforced[1:] == ("+10 (-12 to +33)", 3, 1, "0.625")
    assert not differences(run, ["tutor"]).rows
