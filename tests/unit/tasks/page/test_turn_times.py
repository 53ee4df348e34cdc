from __future__ import annotations

from pathlib import Path

import pytest
from support.tables.page_runs import Scored, counted_run
from support.tables.page_tables import PageReader
from support.tables.score_tables import called, score

from treadle.core.runs.run import Run
from treadle.tasks.analysis.run_results import RunResults
from treadle.tasks.page.build import report_page
from treadle.tasks.summaries.report_seconds import report_seconds, seconds_table

PLAN = "<plan>T1: a\n- Dependencies: none\nT2: b\n- Dependencies: none\nT3: c\n- Dependencies: T1\n"
PLAN += "T4: d\n- Dependencies: T2, T3</plan>"
TEXT = f"{PLAN}<wiki_search>T1: 1 | T2: 2 | T3: 3 | T4: 4</wiki_search>"
IDS = [f"t0.call_wiki_search_0_{place}" for place in range(4)]
CALLS = [{"id": id, "tool": "wiki_search", "argument": id, "status": "ok", "turn": 0} for id in IDS]
SECONDS, STARTS = (2.0, 5.0, 4.0, 1.0), (0.0, 0.0, 2.0, 6.0)
TIMES = [
    {"id": id, "started_s": start, "seconds": seconds} for id, start, seconds in zip(IDS, STARTS, SECONDS, strict=True)
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a run of a planner, whose tasks take 2, 5, 4 and 1 s, and of an agent that does not plan."""
    rows = [
        score(f"{model}-{number}", f"q{number}", number > 0, model=model, num_turns=turns, prompt_tokens=7,
              completion_tokens=10 * turns, **called(wiki_search=4))
        for model, turns in (("planner", 2), ("other", 5))
        for number in range(4)
    ]  # fmt: skip
    planner = Scored(
        rows[:4], [(9.0, 2.0, 7.0), (10.0, 3.0, 7.0), (11.0, 4.0, 7.0), None],
        segments=[("plan", TEXT), ("result", "found")], tool_calls=CALLS, call_times=TIMES,
        environment={"type": "planning"},
    )  # fmt: skip
    other = Scored(rows[4:], [(14.0, 2.0, 12.0)] * 4)
    return counted_run(tmp_path_factory.mktemp("run"), "run", [planner, other])


@pytest.fixture(scope="module")
def page(run: Run) -> PageReader:
    return PageReader(report_page([run]))


def test_turns_and_times_stand_next_to_accuracy(page: PageReader) -> None:
    table = page.table("latency", "Turns and time next to accuracy")
    assert table.row("planner") == {
        "model": "planner", "rollouts": "4", "right, %": "75.0", "turns": "2.00", "sampled tokens": "20.0",
        "tools, one by one": "12.0", "in batches": "5.00", "critical path": "7.00", "speed-up": "2.40",
        "in tools": "7.00", "median": "10.0",
    }  # fmt: skip
    other = table.row("other")
    assert (other["turns"], other["in tools"], other["median"]) == ("5.00", "12.0", "14.0")
    assert (other["in batches"], other["critical path"], other["speed-up"]) == ("-", "-", "-")


def test_seconds_stand_next_to_accuracy_in_terminal_and_analysis(run: Run) -> None:
    """The fourth rollout of the planner was not measured."""
    (report,) = (record for record in run.records() if record.stage == "report")
    rows, seconds = list(run.rows(report.outputs["summary"]).rows()), report_seconds(report, run)
    table = seconds_table(rows, seconds)
    assert table is not None
    assert [row[0] for row in table.rows] == ["planner", "other"]
    assert table.rows[0][2:] == ("0.750", "2.00", "10.00", "10.00", 3)
    assert table.rows[1][2:] == ("0.750", "5.00", "14.00", "14.00", 4)
    loaded = RunResults(run).report().arrow.to_pylist()
    assert {row["seconds"] for row in loaded if row["model"] == "planner"} == {10.0}
    assert seconds_table(rows, {}) is None


def test_agents_without_plans_have_no_columns_for_them(tmp_path: Path) -> None:
    rows = [score("r", "q", True, model="m", num_turns=3, prompt_tokens=7)]
    table = PageReader(report_page([counted_run(tmp_path, "run", [Scored(rows)])])).table(
        "latency", "Turns and time next to accuracy"
    )
    assert "critical path" not in table.row("m") and table.row("m")["turns"] == "3.00"
