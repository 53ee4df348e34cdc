"""The report's page and markdown say what looks wrong with rollouts and scores, with examples as plain text."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from support.tables.problem_runs import answers, report_of, scored_run, silent_run

from treadle.cli.views import summary
from treadle.report.files import report_content
from treadle.tasks.page.build import report_page

HOSTILE = "<script>alert(1)</script> | [x](javascript:1) \x1b[2J\n# head"


def test_page_and_markdown_say_how_rollouts_ended_with_examples_and_causes(tmp_path: Path) -> None:
    run, record = silent_run(tmp_path)
    page, markdown = report_page([run]).decode(), report_content(run, record, "md").decode()
    for text in (page, markdown):
        assert "10 of 10 rollouts did not end with an answer" in text and "What looks wrong" in text
        assert all(words in text for words in ("rq0", "rq1", "rq2", "The answer is four.", "Asked for")), text
        assert "rq3" not in text
    assert 'href="#problems"' in page
    stored = run.rows(record.outputs["summary"]).read_file("report.md").decode()
    assert "More than half of the rollouts of base on world did not end with an answer" in stored


def test_examples_are_plain_text(tmp_path: Path) -> None:
    run, record = silent_run(tmp_path, HOSTILE)
    page, markdown = report_page([run]).decode(), report_content(run, record, "md").decode()
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page
    assert "<script>" not in markdown.replace(r"\<", "") and "\n# head" not in markdown
    assert all("\x1b" not in text for text in (page, markdown))
    assert markdown.count(r"\[x\](javascript") == 6, "three questions, and what was answered"


def test_scores_without_a_right_answer_are_shown_next_to_their_gold_answers(tmp_path: Path) -> None:
    run = scored_run(tmp_path, answers(*(str(number) for number in range(10, 20))), gold="B")
    markdown = report_content(run, report_of(run), "md").decode()
    assert "None of 10 answers is right" in markdown and "options with" in markdown
    assert "| gold |" in markdown and "None of 10 answers is right" in report_page([run]).decode()


def test_good_results_have_no_such_section(tmp_path: Path) -> None:
    run = scored_run(tmp_path, answers(*(str(number) for number in range(10, 20)), correct=True))
    record = report_of(run)
    assert report_content(run, record, "md") == run.rows(record.outputs["summary"]).read_file("report.md")
    assert 'href="#problems"' not in report_page([run]).decode()


def test_terminal_tells_of_compared_instances_that_it_did_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, record = silent_run(tmp_path)
    out = io.StringIO()
    monkeypatch.setattr(summary, "console", lambda: Console(file=out, width=120))
    summary.print_end(run, [record], as_json=False)
    assert out.getvalue().count("10 of 10 rollouts did not end with an answer") == 1
    out.truncate(0)
    made = [one for one in run.records() if one.stage == "rollouts"]
    summary.print_end(run, [*made, record], as_json=False)
    assert out.getvalue().count("10 of 10 rollouts did not end with an answer") == 1, "by its own summary"
