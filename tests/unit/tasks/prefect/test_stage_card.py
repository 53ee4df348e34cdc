"""The card of a finished stage: inputs, outputs, usage, and links."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from support.tables.score_tables import put_rows
from support.tables.viewer_run import filled, put_from, question_row

from treadle.core.runs.address import Address
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.datagen.pools.report import usage_figures
from treadle.datagen.questions.tables import QUESTIONS
from treadle.eval.tables import SCORES
from treadle.report.tables import SUMMARY
from treadle.stages.report import StageReport
from treadle.tasks.prefect import stage_card as card_module
from treadle.tasks.prefect.stage_card import stage_card

PRICED = {"prompt_price_per_million": 1.0, "completion_price_per_million": 2.0}
ENDPOINTS = [{"url": "http://127.0.0.1:9/v1"}]
USAGE = {
    "answer:strong": {"calls": 7, "prompt_tokens": 2_000_000, "completion_tokens": 500_000},
    "answer:other": {"calls": 1, "prompt_tokens": 10, "completion_tokens": 5},
}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    models = {
        "strong": {"model": "Strong-72B", "endpoints": ENDPOINTS, **PRICED},
        "other": {"model": "Other-7B", "endpoints": ENDPOINTS},
    }
    return Run.create(tmp_path / "a (b)", "r1", {"models": models}, {})


def scored(run: Run, **changes: object) -> StageRecord:
    """Return the record of scores of two questions, with what judges used."""
    put_rows(run, "1/questions", QUESTIONS, [question_row(key, f"{key}?") for key in ("q1", "q2")])
    row = filled(SCORES, rollout_key="k1", question_key="q1", dataset="world", judges="{}", scorer="qa_f1")
    put_from(run, "1/scores@base", {"scores": [row]}, {"questions": Address(1, "questions")})
    record = run.record(Address.parse("1/scores@base"))
    assert record is not None
    times = {"started_at": "2026-03-01T10:00:00+00:00", "finished_at": "2026-03-01T10:25:00+00:00"}
    return record.model_copy(update={"metrics": {"usage": USAGE}, **times, **changes})


def cells(markdown: str) -> list[list[str]]:
    """Cells of all rows of all tables."""
    lines = [line for line in markdown.splitlines() if line.startswith("| ")]
    return [[re.sub(r"\\(.)", r"\1", cell.strip()) for cell in line.strip("| ").split(" | ")] for line in lines]


def test_card_shows_inputs_outputs_and_duration(run: Run) -> None:
    record = scored(run)
    card = stage_card(record, run).markdown
    (read,), made = record.inputs["questions"], record.outputs["scores"]
    assert ["read questions", "1/questions", "2", read.artifact.digest] in cells(card)
    assert ["made scores", "1/scores@base", "1", made.digest] in cells(card)
    assert "Took 25 min, from 2026-03-01T10:00:00+00:00 to 2026-03-01T10:25:00+00:00" in card


def test_card_shows_model_usage_and_its_cost_if_prices_are_known(run: Run) -> None:
    shown = cells(stage_card(scored(run), run).markdown)
    assert ["1/scores@base", "answer:strong", "Strong-72B", "7", "2,000,000", "500,000", "3.00"] in shown
    assert ["1/scores@base", "answer:other", "Other-7B", "1", "10", "5", "?"] in shown
    assert ["all", "", "", "8", "2,000,010", "500,005", "at least 3.00"] in shown


def test_card_omits_usage_of_another_result_or_unreadable_usage(run: Run) -> None:
    for change in ({"reused_from": "1/scores@base"}, {"metrics": {"usage": {"answer:strong": {}}}}, {"metrics": {}}):
        assert "prompt tokens" not in stage_card(scored(run, **change), run).markdown


def test_pools_card_counts_usage_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    table = usage_figures({"policy": USAGE["answer:strong"]})
    monkeypatch.setattr(card_module, "stage_report", lambda record, run: StageReport([], [table]))
    shown = cells(stage_card(scored(run), run).markdown)
    assert [row for row in shown if "2,000,000" in row] == [["policy", "7", "2,000,000", "500,000"]]


def test_report_links_name_and_open_their_targets(run: Run) -> None:
    assert stage_card(scored(run), run).links == ""
    row = filled(SUMMARY, model="base", dataset="every", figure="score")
    put_from(run, "1/report", {"summary": [row]}, {"scores": Address(1, "scores", "base")})
    record = run.record(Address(1, "report"))
    assert record is not None
    links = stage_card(record, run).links
    folder = Path(run.storage.location(record.outputs["summary"].folder))
    found = re.findall(r"^- (\w+): \[(.+)\]\((.+)\)$", links, re.M)
    assert [name for name, _, _ in found] == ["report", "figures"]
    for (_, text, address), name in zip(found, ("report.md", "summary.csv"), strict=True):
        assert Path(unquote(urlsplit(address).path)) == folder / name
        assert text.replace("\\", "") == str(folder / name)
