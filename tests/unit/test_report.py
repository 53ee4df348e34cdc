"""The stage `report` on real artifacts."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from support.score_tables import new_run, put_rows, score

from treadle.core import schemas
from treadle.core.errors import ConfigError
from treadle.core.execute import execute
from treadle.core.stage import Address, Instance
from treadle.eval.config import ReportSettings
from treadle.eval.layout import Line, summary_lines
from treadle.eval.markdown import escape
from treadle.eval.report import REPORT
from treadle.eval.terminal import summary_table


def _report(tmp_path: Path, *tables: list[dict[str, Any]]) -> tuple[list[Line], str]:
    run = new_run(tmp_path)
    inputs = tuple(put_rows(run, f"1/scores@model{index}", schemas.SCORES, rows) for index, rows in enumerate(tables))
    instance = Instance(
        address=Address.parse("1/report"), stage=REPORT, settings=ReportSettings(), inputs={"scores": inputs}
    )
    record = execute(instance, run)
    (markdown,) = tmp_path.rglob("report.md")
    return summary_lines(run.rows(record.outputs["summary"]).rows()), markdown.read_text()


def _many(model: str, dataset: str, verdicts: list[bool | None], **columns: Any) -> list[dict[str, Any]]:
    return [
        score(f"{model}-{dataset}-{index}", f"{dataset}-{index}", verdict, model=model, dataset=dataset, **columns)
        for index, verdict in enumerate(verdicts)
    ]


def test_models_and_data_sets_are_summed_up_apart(tmp_path: Path) -> None:
    base = _many("base", "gsm8k", [True] * 14 + [False] * 16, calls_requested=2) + _many("base", "2wiki", [True] * 4)
    tuned = _many("tuned", "gsm8k", [True] * 30)
    lines, markdown = _report(tmp_path, base, tuned)
    assert [(line.model, line.dataset) for line in lines] == [
        ("base", "2wiki"),
        ("base", "gsm8k"),
        ("base", "all"),
        ("tuned", "gsm8k"),
    ]
    accuracy = lines[1].figures["accuracy"]
    assert (round(accuracy["value"], 3), round(accuracy["low"], 3)) == (0.467, 0.302)
    assert (round(accuracy["high"], 3), accuracy["method"]) == (0.639, "wilson")
    means = [lines[1].value(name) for name in ("calls_requested", "tool_use", "completion_tokens")]
    assert means == [2.0, 1.0, 10.0]
    assert "0.467 [0.302, 0.639]" in markdown


@pytest.mark.covers("evaluation-12")
def test_data_sets_weigh_the_same_in_the_whole(tmp_path: Path) -> None:
    lines, _ = _report(tmp_path, _many("m", "big", [True] * 90 + [False] * 10) + _many("m", "small", [False] * 2))
    overall = lines[-1]
    accuracy = overall.figures["accuracy"]
    assert (overall.dataset, accuracy["value"], accuracy["method"]) == ("all", 0.45, "combined")
    assert (overall.num_rollouts, overall.num_questions) == (102, 102)
    assert 0 <= accuracy["low"] < 0.45 < accuracy["high"] <= 1


def test_samples_of_one_question_are_clustered(tmp_path: Path) -> None:
    rows = [score(f"r{n}", f"q{n // 2}", n % 4 < 2, sample_index=n % 2) for n in range(20)]
    (line,), _ = _report(tmp_path, rows)
    accuracy = line.figures["accuracy"]
    assert (line.num_rollouts, line.num_questions) == (20, 10)
    assert (accuracy["value"], accuracy["method"]) == (0.5, "clustered")


@pytest.mark.covers("evaluation-7")
def test_efficiency_and_tool_use_of_the_worked_example(tmp_path: Path) -> None:
    values = [(1.0, 0), (1.0, 2), (0.5, 1), (0.0, 3)]
    rows = [
        score(f"r{n}", f"q{n}", p == 1, score=p, f1=p, efficiency=p / max(t, 1), calls_requested=t)
        for n, (p, t) in enumerate(values)
    ]
    (line,), _ = _report(tmp_path, rows)
    assert [line.value(name) for name in ("efficiency", "tool_use", "calls_requested")] == [0.5, 0.75, 1.5]


def test_rows_without_verdict_are_counted_and_left_out(tmp_path: Path) -> None:
    (line,), markdown = _report(tmp_path, _many("m", "d", [True, None, False, None]))
    assert (line.num_rollouts, line.figures["accuracy"]["num_undecided"], line.value("accuracy")) == (4, 2, 0.5)
    assert "4 (2 unscored)" in markdown


def test_without_a_verdict_only_the_figures_that_need_none_are_there(tmp_path: Path) -> None:
    (line,), markdown = _report(tmp_path, _many("m", "d", [None, None], calls_requested=2))
    assert (line.value("score"), line.value("efficiency"), line.value("calls_requested")) == (None, None, 2.0)
    assert "2 (2 unscored)" in markdown


def test_data_set_with_the_name_of_the_sum_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="all"):
        _report(tmp_path, _many("m", "all", [True]))


def test_statuses_are_counted(tmp_path: Path) -> None:
    rows = _many("m", "d", [True, True]) + [
        score("x", "qx", False, model="m", dataset="d", status="max_turns"),
        score("y", "qy", False, model="m", dataset="d", status="failed"),
    ]
    (line,), markdown = _report(tmp_path, rows)
    assert line.counts("status") == {"answered": 2, "max_turns": 1, "failed": 1}
    assert (line.value("num_failed"), line.value("num_valid")) == (1, 4)
    assert "| answered | failed | max_turns |" in markdown


def test_names_cannot_be_taken_for_markup(tmp_path: Path) -> None:
    name = "a|b\n<script>[x](y) *z* \x1b[31m`_q_"
    (whole,), markdown = _report(tmp_path, _many(name, "d", [True]))
    assert whole.model == name
    lines = [line for line in markdown.splitlines() if line.startswith("| a")]
    assert len(lines) == 2
    assert "<script>" not in markdown.replace(r"\<", "") and "\x1b" not in markdown
    assert r"a\|b" in lines[0] and r"\*z\*" in lines[0] and r"\_q\_" in lines[0]
    assert escape("no_answer") == "no_answer"


def test_terminal_table_shows_names_as_they_are(tmp_path: Path) -> None:
    from rich.console import Console

    (line,), _ = _report(tmp_path, _many("[red]m[/red]\x1b[2J", "d", [True, False]))
    console = Console(file=io.StringIO(), width=200)
    console.print(summary_table(line.figures.values()))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[red]m[/red]" in shown and "\x1b" not in shown
    assert "0.500 [0.095, 0.905]" in shown


def test_efficiency_is_left_out_where_no_tool_was_used(tmp_path: Path) -> None:
    _, markdown = _report(tmp_path, _many("m", "d", [True]))
    (line,) = [line for line in markdown.splitlines() if line.startswith("| m") and "1.000" in line]
    assert [cell.strip() for cell in line.split("|")][6] == "-"
