"""The page of runs: its sections by what a run has, its numbers, hostile texts, and the command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.tables.page_runs import NUM_QUESTIONS, Scored, add_flywheel, counted_run, evaluated_run
from support.tables.score_tables import called, put_rows, score

from treadle.cli.commands.report import report
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance
from treadle.eval.config import ReportSettings
from treadle.eval.tables import SCORES
from treadle.report.entry import REPORT_STAGE
from treadle.tasks.page.build import report_page

HALF = [number % 2 == 0 for number in range(NUM_QUESTIONS)]
MORE = [number % 2 == 0 or number % 3 == 0 for number in range(NUM_QUESTIONS)]
HOSTILE = "</style><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7 }}\u202e\x1b[31m"


def sections_of(page: bytes) -> list[str]:
    return re.findall(r'<section id="([\w-]+)"', page.decode())


def text_of(page: bytes) -> str:
    """Return roughly what a reader sees: without markup and with single blanks."""
    return " ".join(re.sub(r"<[^>]*>", " ", page.decode().split("<body>")[1]).split())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = evaluated_run(tmp_path_factory.mktemp("whole"), "whole", {"base": HALF, "tuned": MORE}, datasets=("a", "b"))
    add_flywheel(run)
    return run


@pytest.fixture(scope="module")
def page(whole: Run) -> bytes:
    return report_page([whole])


def test_sections_are_in_reading_order(page: bytes) -> None:
    assert sections_of(page) == [
        "headline", "comparisons", "radar", "behaviour", "latency", "endings", "decided", "pools", "sft", "rl", "cost",
        "manifest",
    ]  # fmt: skip


def test_absent_parts_are_omitted_silently(tmp_path: Path) -> None:
    page = report_page([Run.create(tmp_path, "new", {}, {})])
    assert sections_of(page) == ["manifest"]
    assert "Nothing was evaluated yet" in text_of(page)


def test_headline_shows_values_and_intervals_of_the_summary(whole: Run, page: bytes) -> None:
    lines = {
        (row["model"], row["dataset"]): row
        for record in whole.records()
        if record.stage == "report"
        for row in whole.rows(record.outputs["summary"]).rows()
        if row["figure"] == "accuracy"
    }
    row = lines["tuned", "all"]
    low, value, high = (f"{100 * row[name]:.1f}" for name in ("low", "value", "high"))
    assert f"{value} % {low} to {high} %" in text_of(page)
    assert f"{value} [{low}, {high}]" in text_of(page)


def test_averages_name_their_datasets(tmp_path: Path) -> None:
    """Three datasets of four questions each; none is omitted because another average has as many questions."""
    verdicts = {"base": [False, True, True] * 4, "tuned": [True, True, False] * 4}
    run = evaluated_run(
        tmp_path, "run", verdicts, datasets=("math500", "2wiki", "world"), headline=("math500", "2wiki")
    )
    page = report_page([run])
    text = text_of(page)
    assert "Over all data sets" not in text
    assert "Average of 2wiki, math500 model rollouts right, %" in text
    assert re.search(r"base 50\.0 % [\d.]+ to [\d.]+ % · 8 questions of 2wiki, math500 ", text)
    assert "average of 2wiki, math500 base 8 50.0 [" in text
    assert "average of every data set base 12 66.7" in text
    assert "All figures: average of 2wiki, math500 [95 %]" in text
    assert "base → tuned average of 2wiki, math500 8 " in text


def test_averages_of_different_datasets_are_not_shown_as_one_metric(tmp_path: Path) -> None:
    verdicts = {"m": [True, False, False] * 4}
    runs = [
        evaluated_run(tmp_path, "one", verdicts, datasets=("easy", "mid", "hard")),
        evaluated_run(tmp_path, "two", verdicts, datasets=("easy", "mid")),
    ]
    text = text_of(report_page(runs))
    assert "Figures of different data sets model data sets rollouts" in text
    assert "m · one easy, hard, mid 12 " in text and "m · two easy, mid 12 " in text
    assert text.count("these do not show which model is better") == 2, "at the headline and at the radar"


VOTES = {"votes_yes": 0, "votes_no": 10, "votes_abstained": 0}
TIE = {"votes_yes": 5, "votes_no": 5, "votes_abstained": 0}


def test_pending_votes_failures_and_missing_verdicts_are_shown_with_the_metrics(tmp_path: Path) -> None:
    """A third of the twelve rollouts makes no call; eight have votes to tell."""
    run = evaluated_run(
        tmp_path, "run", {"tied": [None, *HALF[1:]], "sure": HALF}, columns={"tied": TIE, "sure": VOTES}
    )
    text = text_of(report_page([run]))
    assert "- (8 open)" in text
    assert "rollouts without a verdict 1 0 rollouts without a majority of votes 8 0 rollouts that failed 0 0" in text
    assert "open: without a majority of votes" in text


def test_model_without_calls_has_no_efficiency(tmp_path: Path) -> None:
    """Neither at the headline nor at the radar nor compared."""
    idle = {"calls_requested": 0, "calls_executed": 0, "tools": []}
    run = evaluated_run(tmp_path, "run", {"direct": HALF, "tuned": MORE}, columns={"direct": idle})
    text = text_of(report_page([run]))
    assert re.search(r"direct 12 50\.0 \[25\.4, 74\.6\] 100\.0 - ", text)
    assert re.search(r"efficiency 0 to 1 - 0\.", text)
    assert not re.search(r"direct → tuned world efficiency", text)


def test_pass_at_k_is_shown_if_any_dataset_has_it(tmp_path: Path) -> None:
    """Four rollouts of one question of `a`, one rollout of each of the others: the average has none."""
    run = evaluated_run(tmp_path, "run", {"m": [True] * 12}, datasets=("a", "b"))
    assert "pass@" not in text_of(report_page([run]))
    rows = [
        score(f"r{place}", "q0" if place < 4 else f"q{place}", place == 0, model="m", sample_index=place % 4,
              dataset="a" if place < 4 else "b")
        for place in range(8)
    ]  # fmt: skip
    other = Run.create(tmp_path, "other", {}, {})
    inputs = (put_rows(other, "1/scores@m", SCORES, rows),)
    execute(
        Instance(
            address=Address.parse("1/report"), stage=REPORT_STAGE, settings=ReportSettings(), inputs={"scores": inputs}
        ),
        other,
    )
    text = text_of(report_page([other]))
    assert "pass@2, % pass@4, %" in text
    assert re.search(r" a m 4 .* 50\.0 100\.0 b m 4 ", text)


def test_rollouts_are_counted_from_the_report_if_scores_are_missing(tmp_path: Path) -> None:
    run = evaluated_run(tmp_path, "run", {"base": HALF}, datasets=("a", "b"))
    scores = next(record for record in run.records() if record.stage == "scores").outputs["scores"]
    (tmp_path / scores.folder / "artifact.json").unlink()
    assert "Rollouts 12 " in text_of(report_page([run]))


def test_median_matches_the_chart(tmp_path: Path) -> None:
    """The values are 10, 17, ... 87 sampled tokens; the first colour stays that of answers even if there are none."""
    run = evaluated_run(tmp_path, "run", {"base": HALF}, columns={"base": {"status": "limit"}})
    text = text_of(report_page([run]))
    assert "base: median 48, " in text and re.search(r"base 12 1\.00 1\.00 [-\d.%]+ 48 48 87 ", text)
    assert "Rollouts by how they ended model answered limit base 0 12" in text


def test_comparisons_show_p_values_and_flipped_questions(page: bytes) -> None:
    text = text_of(page)
    assert "base → tuned" in text
    gained = [number for number in range(NUM_QUESTIONS) if MORE[number] and not HALF[number]]
    for number in gained:
        assert f"what is q{number}? answer q{number} base says {number} tuned says {number}" in text


def test_cost_counts_priced_usage_and_reports_unpriced(page: bytes) -> None:
    text = text_of(page)
    assert "1/pools policy served-policy 40 5,000 1,000 7.00" in text
    assert "1/pools judge served-judge 7 5,000 1,000 ?" in text
    assert "1/scores@model0 correctness:policy served-policy 3 2,000 500 3.00" in text
    assert "all 50 12,000 2,500 at least 10.00" in text


def test_trainings_are_shown_by_loss_and_their_own_figures(page: bytes) -> None:
    text = text_of(page)
    assert "4 logged steps; the loss goes from 2.000 to 0.500." in text
    assert "Rows that were trained on (1/sft)" in text
    assert "Curves over the steps (1/rl@phase-1)" in text


def test_same_run_gives_the_same_bytes(whole: Run, page: bytes) -> None:
    assert report_page([Run.open(whole.storage.location(), "whole")]) == page


def test_models_of_several_runs_are_compared_on_common_questions(tmp_path: Path) -> None:
    runs = [
        evaluated_run(tmp_path, "first", {"base": HALF, "tuned": HALF}),
        evaluated_run(tmp_path, "second", {"tuned": MORE[:9], "other": MORE[:9]}),
    ]
    text = text_of(report_page(runs))
    assert "tuned · first → second" in text
    assert "base · first → other · second" in text
    assert "tuned · first → other" not in text
    assert "base → tuned · first" in text
    assert re.search(r"tuned · first → second world 9 ", text)


def test_runs_with_the_same_name_are_numbered(tmp_path: Path) -> None:
    runs = [evaluated_run(tmp_path / name, "run", {"base": HALF}) for name in ("one", "two")]
    assert "base · run (1) → run (2)" in text_of(report_page(runs))


def test_hostile_texts_stay_text(tmp_path: Path) -> None:
    run = evaluated_run(tmp_path, "run", {"base": HALF, "tuned": MORE}, text=HOSTILE, datasets=("a", "b"))
    add_flywheel(run, HOSTILE)
    page = report_page([run]).decode()
    assert not re.search(r"<(script|img|iframe|link)\b|\u202e|\x1b", page)
    assert page.count("</style>") == 1
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 20
    assert "{{ 7 }}" in page


def test_tools_of_any_names_and_number_stay_few_rows_and_text(tmp_path: Path) -> None:
    """Each rollout calls the same two tools, and one of a name of its own."""
    keys, tables = [f"q{number}" for number in range(300)], []
    for model in ("base", "tuned"):
        names = [("calc", HOSTILE, f"{model}-{key}") for key in keys]
        calls = [called(**dict.fromkeys(sorted(three), 1)) for three in names]
        tables.append(
            Scored([score(f"{model}-{key}", key, True, model=model, **calls[n]) for n, key in enumerate(keys)])
        )
    page = report_page([counted_run(tmp_path, "run", tables)]).decode()
    assert not re.search(r"<(script|img|iframe|link)\b|\u202e|\x1b", page)
    text = text_of(page.encode())
    assert re.search(r"base calc 1\.00 100\.0% 0 0\.0%", text) and re.search(r"tuned \(others\) [\d.]+ ", text)
    assert len(re.findall(r"base-q\d+", text)) + len(re.findall(r"tuned-q\d+", text)) < 100


def test_unreadable_parts_are_reported_once_and_the_rest_is_shown(tmp_path: Path) -> None:
    run = evaluated_run(tmp_path, "run", {"base": HALF})
    add_flywheel(run)
    summary = next(record for record in run.records() if record.stage == "report").outputs["summary"]
    (tmp_path / summary.folder / "artifact.json").unlink()
    page = report_page([run])
    assert "headline" not in sections_of(page) and "pools" in sections_of(page)
    assert text_of(page).count("Not shown of 1/report") == 1


def test_report_command_writes_a_page_and_replaces_only_pages(whole: Run, tmp_path: Path) -> None:
    root, out = str(whole.storage.location()), tmp_path / "new" / "report.html"
    by_name = CliRunner().invoke(report, ["--run", "whole", "--root", root, "--out", str(out)], catch_exceptions=False)
    assert by_name.exit_code == 0 and str(out) in by_name.output
    first = out.read_bytes()
    by_folder = CliRunner().invoke(report, ["--run", f"{root}/runs/whole", "--out", str(out)], catch_exceptions=False)
    assert by_folder.exit_code == 0 and out.read_bytes() == first
    notes = tmp_path / "notes.html"
    notes.write_text("<!doctype html>mine")
    refused = CliRunner().invoke(report, ["--run", "whole", "--root", root, "--out", str(notes)])
    assert "no page of `treadle report`" in str(refused.exception)
    assert notes.read_text() == "<!doctype html>mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "notes.html"]
