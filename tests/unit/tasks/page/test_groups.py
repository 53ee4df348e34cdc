"""Parts of data sets on the page and in JSON: by columns of questions, and by length."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.tables.page_tables import PageReader
from support.tables.score_tables import new_run, put_rows, question, score

from treadle.cli.views.summary import print_end
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance
from treadle.datagen.questions.tables import QUESTIONS
from treadle.eval.config import ReportSettings
from treadle.eval.tables import SCORES
from treadle.report.entry import REPORT_STAGE
from treadle.report.files import report_content
from treadle.tasks.page.build import report_page


def reported(folder: Path, languages: str, tokens: int) -> Run:
    """Return a run with a report on two models; one character per question is its language."""
    run = new_run(folder)
    asked = [
        {**question(f"q{place}", ["x"]), "meta": json.dumps({"lang": lang})} for place, lang in enumerate(languages)
    ]
    put_rows(run, "1/questions", QUESTIONS, asked)
    scored = tuple(
        put_rows(run, f"1/scores@{model}", SCORES, [
            score(f"{model}-{row['question_key']}", row["question_key"], place > 0, model=model,
                  reasoning_tokens=tokens * place)
            for place, row in enumerate(asked)
        ])
        for model in ("base", "tuned")
    )  # fmt: skip
    inputs = {"scores": scored, "questions": (Address.parse("1/questions"),)}
    settings = ReportSettings(bootstrap_samples=100)
    execute(Instance(address=Address.parse("1/report"), stage=REPORT_STAGE, settings=settings, inputs=inputs), run)
    return run


def test_parts_of_data_sets_are_on_the_page_and_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = reported(tmp_path, "eezz", 100)
    table = PageReader(report_page([run])).table("groups", "world by lang")
    assert [row[:3] for row in table.rows[1:]] == [
        ["e", "base", "2"], ["e", "tuned", "2"], ["z", "base", "2"], ["z", "tuned", "2"],
    ]  # fmt: skip
    (record,) = (record for record in run.records() if record.stage == "report")
    groups = json.loads(report_content(run, record, "json"))["groups"]
    print_end(run, [record], as_json=True)
    (told,) = json.loads(capsys.readouterr().out)
    assert told["groups"] == groups and {row["column"] for row in groups} >= {"lang", "response tokens"}
    shares: dict[Any, float] = {
        (row["model"], row["group"]): row["value"]
        for row in groups
        if (row["column"], row["figure"]) == ("lang", "accuracy")
    }
    assert shares == {("base", "e"): 0.5, ("base", "z"): 1.0, ("tuned", "e"): 0.5, ("tuned", "z"): 1.0}


def test_data_sets_without_parts_have_no_section(tmp_path: Path) -> None:
    assert 'id="groups"' not in report_page([reported(tmp_path, "ee", 0)]).decode()
