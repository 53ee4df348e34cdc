"""The stage `report` on real artifacts."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.tables.score_tables import new_run, put_rows, score

from treadle.cli.commands.export import REPORT_FORMATS, format_by_name
from treadle.core.errors import ConfigError
from treadle.core.figures import escape
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.stage import Instance
from treadle.core.store.artifact_reader import ArtifactReader
from treadle.core.store.exported import write_file
from treadle.core.tables import part_items
from treadle.eval.config import ReportSettings
from treadle.eval.statistics import holm
from treadle.eval.tables import SCORES
from treadle.report.comparison_rows import COMPARED_FIGURES, model_pairs
from treadle.report.entry import REPORT_STAGE
from treadle.report.files import as_csv, report_content
from treadle.report.layout import SummaryLine, comparison_cells, summary_lines
from treadle.report.tables import COMPARISONS
from treadle.report.terminal import comparison_table, judges_table, summary_table


def _report(tmp_path: Path, *tables: list[dict[str, Any]], **settings: Any) -> tuple[list[SummaryLine], str]:
    reader, _ = _made(tmp_path, *tables, **settings)
    return summary_lines(reader.rows()), reader.read_file("report.md").decode()


def _made(
    tmp_path: Path, *tables: list[dict[str, Any]], **settings: Any
) -> tuple[ArtifactReader, list[dict[str, Any]]]:
    """Return the summary with its files, and the comparisons."""
    run = new_run(tmp_path)
    inputs = tuple(put_rows(run, f"1/scores@model{index}", SCORES, rows) for index, rows in enumerate(tables))
    instance = Instance(
        address=Address.parse("1/report"),
        stage=REPORT_STAGE,
        settings=ReportSettings(**settings),
        inputs={"scores": inputs},
    )
    record = execute(instance, run)
    return run.rows(record.outputs["summary"]), list(run.rows(record.outputs["comparisons"]).rows())


def _many(model: str, dataset: str, verdicts: list[bool | None], **columns: Any) -> list[dict[str, Any]]:
    return [
        score(f"{model}-{dataset}-{index}", f"{dataset}-{index}", verdict, model=model, dataset=dataset, **columns)
        for index, verdict in enumerate(verdicts)
    ]


def test_models_and_datasets_are_summarized_separately(tmp_path: Path) -> None:
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
def test_datasets_weigh_equally_in_the_total(tmp_path: Path) -> None:
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
def test_efficiency_and_tool_use_reproduce_the_worked_example(tmp_path: Path) -> None:
    values = [(1.0, 0), (1.0, 2), (0.5, 1), (0.0, 3)]
    rows = [
        score(f"r{n}", f"q{n}", p == 1, score=p, f1=p, efficiency=p / max(t, 1), calls_requested=t)
        for n, (p, t) in enumerate(values)
    ]
    (line,), _ = _report(tmp_path, rows)
    assert [line.value(name) for name in ("efficiency", "tool_use", "calls_requested")] == [0.5, 0.75, 1.5]


def test_rows_without_verdict_are_counted_and_excluded(tmp_path: Path) -> None:
    (line,), markdown = _report(tmp_path, _many("m", "d", [True, None, False, None]))
    assert (line.num_rollouts, line.figures["accuracy"]["num_undecided"], line.value("accuracy")) == (4, 2, 0.5)
    assert "4 (2 unscored)" in markdown


def test_only_verdict_free_metrics_exist_without_a_verdict(tmp_path: Path) -> None:
    (line,), markdown = _report(tmp_path, _many("m", "d", [None, None], calls_requested=2))
    assert (line.value("score"), line.value("efficiency"), line.value("calls_requested")) == (None, None, 2.0)
    assert "2 (2 unscored)" in markdown


def test_averages_cover_the_headline_datasets(tmp_path: Path) -> None:
    from rich.console import Console

    rows = [
        row
        for name, right in (("aime24", 1), ("2wiki", 2), ("gsm8k", 4))
        for row in _many("m", name, [True] * right + [False] * (4 - right), domain="qa" if name == "2wiki" else "math")
    ]
    lines, markdown = _report(tmp_path, rows, headline=("aime24", "2wiki"), areas={"2wiki": "knowledge"})
    accuracy = {line.dataset: line.value("accuracy") for line in lines}
    assert accuracy["all"] == 0.375 and accuracy["every"] == pytest.approx(7 / 12)
    assert "math" not in accuracy and "knowledge" not in accuracy, "of one data set each"
    assert "the headline data sets (2wiki, aime24)" in markdown
    told = [row for line in lines for row in line.figures.values()]
    for width in (100, 200):
        console = Console(file=io.StringIO(), width=width)
        console.print(summary_table(told, width=width))
        assert "all: mean over 2 of 3 data sets (the headline)" in console.file.getvalue()  # type: ignore[attr-defined]
    lines, markdown = _report(tmp_path / "other", rows)
    accuracy = {line.dataset: line.value("accuracy") for line in lines}
    assert accuracy["all"] == pytest.approx(7 / 12) and accuracy["math"] == 0.625 and "every" not in accuracy


def test_average_needs_a_value_of_every_dataset(tmp_path: Path) -> None:
    lines, _ = _report(tmp_path, _many("m", "a", [True, None]) + _many("m", "b", [None], calls_requested=3))
    assert (lines[0].value("score"), lines[1].value("score"), lines[2].value("score")) == (1.0, None, None)
    assert (lines[2].dataset, lines[2].value("calls_requested")) == ("all", 1.5)


def test_several_rollouts_per_question_have_pass_at_k(tmp_path: Path) -> None:
    rows = [score(f"r{n}", f"q{n // 4}", n % 4 == 0, sample_index=n % 4) for n in range(40)]
    (line,), markdown = _report(tmp_path, rows)
    assert (line.value("pass@2"), line.value("pass@4")) == (0.5, 1.0)
    row = line.figures["pass@4"]
    assert 0.6 < row["low"] < row["high"] == 1.0 and row["method"] == "wilson"
    assert "| model | data set |        pass@2 [95 %] |        pass@4 [95 %] |" in markdown
    assert f"1.000 [{row['low']:.3f}, 1.000] |" in markdown


def test_models_are_compared_on_datasets_and_on_the_average(tmp_path: Path) -> None:
    before = _many("before", "a", [False] * 10) + _many("before", "b", [False, True] * 10, calls_requested=4)
    after = _many("after", "a", [True] * 10) + _many("after", "b", [False, True] * 10, calls_requested=2)
    reader, comparisons = _made(tmp_path, before, after)
    rows = {(row["dataset"], row["figure"]): row for row in comparisons}
    assert {(row["first"], row["second"]) for row in comparisons} == {("before", "after")}
    won = rows["a", "score"]
    assert (won["difference"], won["test"], len(won["gained"]), won["lost"]) == (1.0, "mcnemar", 10, [])
    assert won["p_value"] == 2 / 1_024
    assert [row["p_adjusted"] for row in comparisons] == holm([row["p_value"] for row in comparisons])
    assert rows["all", "score"]["difference"] == 0.5 and rows["all", "score"]["num_questions"] == 30
    assert rows["b", "calls_requested"]["difference"] == -2
    assert ("a", "accuracy") not in rows and ("a", "efficiency") not in rows and ("b", "efficiency") in rows
    markdown = reader.read_file("report.md").decode()
    assert "First before, second after:" in markdown and "     10, 0 |" in markdown
    assert all(row["note"] is None for row in comparisons)


def test_verdicts_of_different_kinds_are_reported(tmp_path: Path) -> None:
    from rich.console import Console

    rules, judged = _many("rules", "a", [True, False]), _many("judged", "a", [True, True])
    judged[1] |= {"scorer": "judge", "judge_status": "parsed"}
    reader, comparisons = _made(tmp_path, rules, judged)
    note = "only answers of the second were judged"
    assert {row["note"] for row in comparisons} == {note}
    markdown = reader.read_file("report.md").decode()
    assert f"Not directly comparable: {note}." in markdown and "| judge |" in markdown
    console = Console(file=io.StringIO(), width=200)
    console.print(comparison_table(comparisons))
    assert f"rules, then judged: {note}" in console.file.getvalue()  # type: ignore[attr-defined]
    assert "| model  | data set | parsed |" in markdown and "No model judged" not in markdown
    _, comparisons = _made(tmp_path / "right", _many("rules", "a", [True, True]), judged)
    assert {row["note"] for row in comparisons} == {None}, "no judge would have been asked about right answers"


def _judgements(**verdicts: bool | None) -> dict[str, Any]:
    """Columns of an answer that these judges were asked about; None: nothing that can be read."""
    said = {name: {"verdict": verdict, "status": "parsed", "raw": []} for name, verdict in verdicts.items()}
    return {"scorer": "judge", "judge_status": "parsed", "judges": json.dumps(said)}


def test_other_judges_and_other_failure_policies_are_reported(tmp_path: Path) -> None:
    def notes(name: str, ours: dict[str, Any], theirs: dict[str, Any], **domain: str) -> set[str | None]:
        first, second = _many("one", "a", [True, False], **domain), _many("other", "a", [True, True], **domain)
        first[1] |= ours
        second[1] |= theirs
        _, comparisons = _made(tmp_path / name, first, second)
        return {row["note"] for row in comparisons}

    large, small = _judgements(large=True), _judgements(small=False)
    assert notes("same", large, large) == {None}
    assert notes("other", large, small) == {"answers of the first were judged by large, of the second by small"}
    unread = _judgements(large=None) | {"judge_status": "failed"}
    kept = unread | {"scorer": "qa_em"}
    assert notes("unread", unread | {"correct": None, "score": None}, kept) == {
        "answers without a parsable judge reply are left out of the first only"
    }
    assert notes("kept", kept, kept) == {None}
    by_f1 = {"scorer": "qa_f1", "correct": True, "score": 0.6, "parts": part_items({"f1": 0.6})}
    strict = by_f1 | {"correct": False, "score": 0.7, "parts": part_items({"f1": 0.7})}
    told = "an F1 of 0.600 is right for the first, one of 0.700 is not for the second"
    assert notes("strict", by_f1, strict) == {told}
    assert notes("possible", by_f1, strict | {"parts": part_items({"f1": 0.5})}) == {None}


def test_judged_answer_of_another_domain_does_not_hide_that_rules_decided(tmp_path: Path) -> None:
    """Judges decide about mathematics for both, about questions of knowledge for the second alone."""
    first = _many("one", "a", [False, False], domain="qa") + _many("one", "b", [True], domain="math")
    second = _many("other", "a", [True, False], domain="qa") + _many("other", "b", [True], domain="math")
    for row in (first[2], second[0], second[1], second[2]):
        row |= _judgements(large=bool(row["correct"]))
    _, comparisons = _made(tmp_path, first, second)
    notes = {row["dataset"]: row["note"] for row in comparisons}
    told = "only answers of the second were judged"
    assert notes == {"a": told, "b": None, "all": told}


def test_judge_agreement_is_in_summary_report_and_terminal(tmp_path: Path) -> None:
    """Both judges say correct for four of ten answers and wrong for three, and differ on two; one has a single
    reply.
    """
    from rich.console import Console

    said = [(True, True)] * 4 + [(False, False)] * 3 + [(True, False), (False, True), (True, None)]
    rows = [row | _judgements(large=one, small=other)
            for row, (one, other) in zip(_many("m", "a", [True] * 10), said, strict=True)]  # fmt: skip
    lines, markdown = _report(tmp_path, rows + _many("m", "b", [True] * 2), _many("rules", "a", [True]))
    by_name = {(line.model, line.dataset): line for line in lines}
    # Of nine answers seven alike; by chance 5/9 * 5/9 + 4/9 * 4/9 = 41/81.
    kappa = (7 / 9 - 41 / 81) / (1 - 41 / 81)
    for dataset in ("a", "all"):
        line = by_name["m", dataset]
        assert (line.value("num_judged_jointly"), line.value("judge_agreement")) == (9, pytest.approx(7 / 9))
        assert line.value("judge_kappa") == pytest.approx(kappa)
    assert all("judge_agreement" not in by_name[name].figures for name in (("m", "b"), ("rules", "a")))
    assert by_name["m", "all"].counts("scorer") == {"judge": 10, "qa_em": 2}
    assert re.search(rf"\| m +\| a +\| +9 \| +0\.778 \| {kappa:.3f} \|", markdown)
    told = [row for line in lines for row in line.figures.values()]
    console = Console(file=io.StringIO(), width=100)
    table = judges_table(told)
    assert table is not None
    console.print(table)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert re.search(rf"m +all +10 +2 +9 +0\.778 +{kappa:.3f}", shown)
    assert re.search(r"rules +a +0 +1 +- +- +-", shown)
    assert judges_table(by_name["rules", "a"].figures.values()) is None


def test_single_judge_has_no_agreement(tmp_path: Path) -> None:
    lines, markdown = _report(tmp_path, [row | _judgements(large=True) for row in _many("m", "a", [True])])
    assert "judge_agreement" not in lines[0].figures and "Agreement of the judges" not in markdown


def test_averages_over_different_datasets_are_labelled(tmp_path: Path) -> None:
    from rich.console import Console

    both = _many("both", "a", [True]) + _many("both", "b", [True])
    three = [row for name in ("a", "b", "c") for row in _many("three", name, [True])]
    told = "averages cover different data sets, so they do not show which model is better"
    lines, markdown = _report(tmp_path / "unlike", both, three)
    assert told in markdown
    console = Console(file=io.StringIO(), width=200)
    console.print(summary_table([row for line in lines for row in line.figures.values()]))
    assert "cover different data sets" in console.file.getvalue()  # type: ignore[attr-defined]
    assert told not in _report(tmp_path / "headline", both, three, headline=("a", "b"))[1]
    assert told not in _report(tmp_path / "alike", both, _many("other", "a", [True]) + _many("other", "b", [True]))[1]


def test_names_cannot_become_spreadsheet_formulas(tmp_path: Path) -> None:
    """Dataset names may come from rows."""
    name = '=HYPERLINK("http://x","y")'
    rows = _many("@m", name, [True, False]), _many("-n", name, [True, True])
    reader, comparisons = _made(tmp_path, *rows)
    lines = list(csv.DictReader(io.StringIO(reader.read_file("summary.csv").decode())))
    assert {(line["model"], line["dataset"]) for line in lines} == {("'@m", f"'{name}"), ("'-n", f"'{name}")}
    compared = list(csv.DictReader(io.StringIO(as_csv(comparisons, COMPARISONS.schema.names).decode())))
    assert {(line["first"], line["second"], line["dataset"]) for line in compared} == {("'@m", "'-n", f"'{name}")}
    assert {line["figure"] for line in compared} <= set(COMPARED_FIGURES)
    assert float(compared[0]["low"]) < 0, "numbers stay numbers"


def test_report_without_a_judge_states_that_rules_decide(tmp_path: Path) -> None:
    _, markdown = _report(tmp_path, _many("m", "a", [True]))
    assert "No judge was used: rules decided P." in markdown


def test_models_with_different_questions_are_not_compared(tmp_path: Path) -> None:
    reader, comparisons = _made(tmp_path, _many("one", "a", [True]), _many("other", "b", [True]))
    assert comparisons == [] and "## Comparisons" not in reader.read_file("report.md").decode()


def test_models_are_compared_on_their_common_questions(tmp_path: Path) -> None:
    ours, theirs = _many("one", "a", [True] * 10), _many("other", "a", [False] * 8 + [None] * 2)
    for place, row in enumerate(theirs):
        row["question_key"] = f"a-{place + 5}"
    reader, comparisons = _made(tmp_path, ours, theirs)
    (row,) = [row for row in comparisons if row["figure"] == "score"]
    assert (row["num_questions"], row["num_dropped"], row["num_dropped_rollouts"]) == (5, 10, 10)
    assert (row["difference"], len(row["lost"])) == (-1.0, 5)
    (row,) = [row for row in comparisons if row["figure"] == "calls_requested"]
    assert (row["num_questions"], row["num_dropped"]) == (5, 10)
    assert "5 (10 left out)" in reader.read_file("report.md").decode()


def test_terminal_shows_the_main_comparisons_in_100_columns(tmp_path: Path) -> None:
    from rich.console import Console

    before = _many("before", "a", [False] * 10) + _many("before", "b", [False, True] * 10)
    after = _many("after[x]", "a", [True] * 10) + _many("after[x]", "b", [False, True] * 10)
    _, comparisons = _made(tmp_path, before, after)
    console = Console(file=io.StringIO(), width=100)
    console.print(comparison_table(comparisons))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "before, then after[x]" in shown and max(map(len, shown.splitlines())) <= 100
    assert "  all" in shown and "  a " not in shown and "0.500 [" in shown


def test_many_models_are_compared_with_neighbours_and_the_first() -> None:
    assert model_pairs(["a", "b", "c"]) == [("a", "b"), ("a", "c"), ("b", "c")]
    assert model_pairs(["a", "b", "c", "d"]) == [("a", "b"), ("a", "c"), ("a", "d"), ("b", "c"), ("c", "d")]
    assert model_pairs(["a"]) == []
    assert COMPARED_FIGURES[0] == "score"


def test_same_scores_give_the_same_files_in_any_order(tmp_path: Path) -> None:
    tables = [_many("m", "a", [True, False, None], calls_requested=2) + _many("m", "b", [True] * 4)]
    tables[0] = [{**row, "reasoning_tokens": 30 * index} for index, row in enumerate(tables[0])]
    tables.append([{**row, "model": "n", "rollout_key": f"n{row['rollout_key']}"} for row in tables[0]])
    reader, comparisons = _made(tmp_path / "one", *tables)
    turned, others = _made(tmp_path / "two", *(rows[::-1] for rows in tables))
    assert list(reader.rows()) == list(turned.rows()) and comparisons == others
    assert {"report.md", "summary.json", "summary.csv", "radar.svg"} <= set(reader.file_names())
    for name in ("report.md", "summary.json", "summary.csv", "radar.svg"):
        assert reader.read_file(name) == turned.read_file(name)
    told = json.loads(reader.read_file("summary.json"))
    groups = told.pop("groups")
    assert told == {"summary": list(reader.rows()), "comparisons": comparisons}
    found = {(row["dataset"], row["column"], row["group"], row["model"]) for row in groups}
    assert ("a", "response tokens", "<50", "n") in found and ("a", "response tokens", "50-199", "m") in found
    lines = list(csv.DictReader(io.StringIO(reader.read_file("summary.csv").decode())))
    assert len(lines) == len(told["summary"]) and lines[0]["model"] == "m"


def test_radar_shows_ranges_and_draws_names_as_text(tmp_path: Path) -> None:
    name = "</text><script>$x$"
    reader, _ = _made(tmp_path, _many(name, "a", [True, False], calls_requested=2))
    picture = reader.read_file("radar.svg").decode()
    assert "reasoning length (x1000)" in picture and "0 to 50" in picture
    assert "<script" not in picture and "&lt;script&gt;$x$" in picture and "<dc:date>" not in picture


def test_dataset_named_like_the_total_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="all"):
        _report(tmp_path, _many("m", "all", [True]))
    with pytest.raises(ConfigError, match="may not be called 'math'"):
        _report(tmp_path / "two", _many("m", "math", [True]) + _many("m", "a", [True]))
    (line,), _ = _report(tmp_path / "one", _many("m", "math", [True]))
    assert line.dataset == "math"


def test_statuses_are_counted(tmp_path: Path) -> None:
    rows = _many("m", "d", [True, True]) + [
        score("x", "qx", False, model="m", dataset="d", status="max_turns"),
        score("y", "qy", False, model="m", dataset="d", status="failed"),
    ]
    (line,), markdown = _report(tmp_path, rows)
    assert line.counts("status") == {"answered": 2, "max_turns": 1, "failed": 1}
    assert (line.value("num_failed"), line.value("num_valid")) == (1, 4)
    assert "| answered | failed | max_turns |" in markdown


def test_names_cannot_become_markup(tmp_path: Path) -> None:
    name = "a|b\n<script>[x](y) *z* \x1b[31m`_q_"
    (whole,), markdown = _report(tmp_path, _many(name, "d", [True]))
    assert whole.model == name
    lines = [line for line in markdown.splitlines() if line.startswith("| a")]
    assert len(lines) == 4, "one in each table"
    assert "<script>" not in markdown.replace(r"\<", "") and "\x1b" not in markdown
    assert r"a\|b" in lines[0] and r"\*z\*" in lines[0] and r"\_q\_" in lines[0]
    assert escape("no_answer") == "no_answer"


def test_tools_of_any_names_and_number_stay_few_figures_and_text(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>|=\x1b[31m"
    rows = _many("m", "d", [True] * 500)
    for number, row in enumerate(rows):
        names = sorted({"calc", evil, *(f"made-up-{number}-{place}" for place in range(20))})
        row["tools"] = [{"tool": name, "requested": 1, "executed": 1, "failed": 0} for name in names]
        row |= {"calls_requested": 22, "calls_executed": 22}
    reader, _ = _made(tmp_path, rows)
    figures = {row["figure"]: row["value"] for row in reader.rows()}
    assert figures["calls:calc"] == figures[f"calls:{evil}"] == 1 and figures["calls:(others)"] > 19
    assert len([name for name in figures if ":" in name]) < 40
    markdown = reader.read_file("report.md").decode()
    assert r"calls of \<script\>" in markdown and "<script>" not in markdown.replace(r"\<", "")
    assert "\x1b" not in markdown and "calls of (others)" in markdown


def test_terminal_table_shows_names_verbatim(tmp_path: Path) -> None:
    from rich.console import Console

    (line,), _ = _report(tmp_path, _many("[red]m[/red]\x1b[2J", "d", [True, False]))
    console = Console(file=io.StringIO(), width=200)
    console.print(summary_table(line.figures.values()))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[red]m[/red]" in shown and "\x1b" not in shown
    assert "0.500 [0.095, 0.905]" in shown


def test_figures_of_calls_have_no_value_if_no_tool_was_used(tmp_path: Path) -> None:
    unused = ("efficiency", "successful_execution", "successful_execution_strict", "call_success", "conciseness")
    none = {"votes_yes": 0, "votes_no": 0, "votes_abstained": 0}
    (line,), markdown = _report(tmp_path / "none", _many("m", "d", [True], **none))
    assert [line.value(name) for name in unused] == [None] * 5 and line.value("tool_use") == 0.0
    headline, behaviour, *_ = [line for line in markdown.splitlines() if line.startswith("| m ")]
    shown = [cell.strip() for cell in headline.split("|")][4:8]
    assert shown == ["1.000 [0.207, 1.000]", "1.000", "1.000 (.21–1.0)", "-"]
    assert [cell.strip() for cell in behaviour.split("|")][3:8] == ["-"] * 5
    one = {"votes_yes": 0, "votes_no": 1, "votes_abstained": 0, "calls_requested": 1, "calls_executed": 1}
    (line,), _ = _report(tmp_path / "one", _many("m", "d", [True], **one))
    assert [line.value(name) for name in unused] == [1.0] * 5


def test_share_that_ended_with_an_answer_is_in_every_table(tmp_path: Path) -> None:
    rows = _many("m", "d", [True, False, False, False])
    for row in rows[1:]:
        row |= {"status": "no_answer", "is_valid_answer": False}
    (line,), markdown = _report(tmp_path, rows)
    assert line.value("ended") == 0.25 and line.as_dict()["figures"]["ended"]["value"] == 0.25
    from rich.console import Console

    for width in (80, 200):
        console = Console(file=io.StringIO(), width=width)
        console.print(summary_table(line.figures.values(), width=width))
        assert "ended" in console.file.getvalue()  # type: ignore[attr-defined]
    assert "| ended |" in markdown and "ended with an answer" in markdown


def test_votes_without_a_majority_are_reported(tmp_path: Path) -> None:
    tied = {"votes_yes": 5, "votes_no": 5, "votes_abstained": 0, "calls_requested": 1}
    _, markdown = _report(tmp_path, _many("m", "d", [True] * 5, **tied))
    assert "- (5 open)" in markdown
    assert "open)" not in _report(tmp_path / "none", _many("m", "d", [True] * 5, calls_requested=1))[1]


def test_differences_have_as_many_digits_as_needed() -> None:
    def shown(first: float, second: float, low: float, high: float) -> list[str]:
        row = {
            "dataset": "d", "figure": "calls_requested", "num_questions": 9, "num_dropped": 0, "first_value": first,
            "second_value": second, "difference": second - first, "low": low, "high": high, "method": "bootstrap",
            "p_adjusted": 0.001, "gained": [], "lost": [],
        }  # fmt: skip
        return list(comparison_cells(row)[3:6])

    assert shown(1.249, 1.212, -0.049, -0.020) == ["1.249", "1.212", "-0.037 [-0.049, -0.020]"]
    assert shown(1_400.0, 1_150.0, -300.0, -200.04) == ["1,400.0", "1,150.0", "-250.0 [-300.0, -200.0]"]
    assert shown(0.5, 0.49999, -0.0001, 0.1) == ["0.500", "0.500", "0.000 [0.000, 0.100]"]


def test_report_exports_in_every_format(tmp_path: Path) -> None:
    run = new_run(tmp_path / "root")
    scores = put_rows(run, "1/scores@base", SCORES, _many("base", "world", [True, False]))
    record = execute(
        Instance(
            address=Address.parse("1/report"),
            stage=REPORT_STAGE,
            settings=ReportSettings(),
            inputs={"scores": (scores,)},
        ),
        run,
    )
    summary = run.rows(record.outputs["summary"])
    contents = {name: report_content(run, record, name) for name in REPORT_FORMATS}
    assert contents["md"] == summary.read_file("report.md") and contents["csv"] == summary.read_file("summary.csv")
    assert contents["json"] == summary.read_file("summary.json")
    assert contents["comparisons"].decode().split(",")[:3] == ["first", "second", "dataset"]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("a.json", "json"), ("a.CSV", "csv"), ("a.md", "md"), ("figures", "md"), ("figures.1.csv", "csv")],
)
def test_export_format_is_inferred_from_the_file_name(name: str, wanted: str) -> None:
    assert format_by_name(Path(name)) == wanted


def test_file_name_without_a_known_format_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(
        ConfigError, match=r"a.html: .html is the extension of no format; .*\.csv or \.md; `treadle report`"
    ):
        format_by_name(Path("a.html"))


def test_existing_file_is_overwritten_only_on_request(tmp_path: Path) -> None:
    target = tmp_path / "new" / "report.csv"
    write_file(target, b"one")
    with pytest.raises(ConfigError, match="already exists"):
        write_file(target, b"two")
    write_file(target, b"two", replace=True)
    assert target.read_bytes() == b"two" and list(target.parent.iterdir()) == [target]
    with pytest.raises(ConfigError, match="already exists"):
        write_file(tmp_path, b"x", replace=True)
