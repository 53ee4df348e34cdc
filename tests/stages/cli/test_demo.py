"""The demo without engines, as a person runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.runs.command_line import Desk

from treadle.core.runs.address import Address
from treadle.core.runs.run import Run

SMALL = ("--set", "pools.max_questions=6", "--set", "rollouts.max_questions=5")


def test_tutor_demo_makes_rows_and_prints_the_results(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    done = desk.treadle("demo", "--tutor-only", *SMALL).succeeded()
    assert "step 1 of 4: the tutor answers training questions" in done.err
    assert "6 questions: " in done.out and " rows from " in done.out
    (row,) = (line for line in done.out.splitlines() if line.startswith("tutor (rules, no language model)"))
    num_rollouts, accuracy, _, _, ended, _ = row.removeprefix("tutor (rules, no language model)").split()
    assert num_rollouts == "5" and ended == "100.0"
    (page,) = (line.split()[1] for line in done.out.splitlines() if line.startswith("report: "))
    assert page == str(tmp_path / "outputs/demo-tutor.html") and "demo-tutor" in Path(page).read_text()
    assert accuracy in Path(page).read_text()

    again = desk.treadle("demo", "--tutor-only", *SMALL).succeeded()
    assert again.err.count("(unchanged, reused)") == 6 and "step " not in again.err
    assert row in again.out

    desk.treadle("demo", "--tutor-only").failed("pools.max_questions", "treadle demo --fresh")


def test_tutor_answers_the_same_comparisons_in_fewer_turns_with_parallel_searches(tmp_path: Path) -> None:
    done = (
        Desk(tmp_path)
        .treadle("demo", "gap", "--tutor-only", "--set", "rollouts.max_questions_per_dataset=6")
        .succeeded()
    )
    lines = {line.split()[0]: line for line in done.out.splitlines() if line.startswith(("sequential ", "parallel "))}
    numbers = {name: line.replace("[", "").replace("]", "").split()[1:] for name, line in lines.items()}
    turns = {name: float(columns[4]) for name, columns in numbers.items()}
    calls = {name: columns[5] for name, columns in numbers.items()}
    assert [columns[:2] for columns in numbers.values()] == [["6", "100.0"]] * 2
    assert turns["parallel"] == 2.0 and turns["sequential"] >= 3.0 and calls["parallel"] == calls["sequential"]


def test_tutor_talks_with_a_human_and_its_programs_are_tested(tmp_path: Path) -> None:
    few = ("--set", "rollouts.max_questions_per_dataset=12")
    done = Desk(tmp_path).treadle("demo", "colbench", "--tutor-only", *few).succeeded()
    label = "tutor (rules, no language model)"
    (row,) = (line for line in done.out.splitlines() if line.startswith(label))
    dialogues, solved, _, _, passed, messages = row.removeprefix(label).replace("[", "").split()
    assert dialogues == "12" and 0 < float(solved) < 100, "it guesses, and some guesses are right"
    assert float(solved) < float(passed), "a wrong guess passes some tests"
    assert 2 <= float(messages) < 3


def test_agents_make_tasks_and_the_tutor_works_on_them_at_a_service(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    few = ("--set", "exploration.max_questions=4", "--set", "rollouts.max_questions_per_dataset=8")
    done = desk.treadle("demo", "evolve", "--tutor-only", *few).succeeded()
    assert "companion ledger-service is ready" in done.err and "companion helpers is ready" in done.err
    label = "tutor (rules, no language model)"
    (row,) = (line for line in done.out.splitlines() if line.startswith(label))
    tasks, rollouts, solved, *_ = row.removeprefix(label).split()
    assert (tasks, rollouts) == ("8", "8") and 0 < float(solved) < 100, "it errs in some rollouts"

    run = Run.open(tmp_path / "outputs", "demo-evolve-tutor")
    made = table(run, "1/exploration", "synthetic_tasks")
    assert made
    questions = table(run, "1/questions", "questions")
    assert {row["split"] for row in questions if row["dataset"].startswith("ledger")} == {"train"}
    assert {row["environment"] for row in questions if row["split"] == "heldout"} == {"served"}
    assert table(run, "1/experience", "experience")

    again = desk.treadle("demo", "evolve", "--tutor-only", *few).succeeded()
    assert again.err.count("(unchanged, reused)") == 7


def table(run: Run, address: str, kind: str) -> list[dict[str, Any]]:
    """Return the rows of an instance's output."""
    record = run.record(Address.parse(address))
    assert record is not None
    return list(run.rows(record.outputs[kind]).rows())
