"""The numbers of the page, from runs that were counted by hand: each cell by its section, table, row and column."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from support.tables.page_runs import Scored, add_rollouts, counted_run
from support.tables.page_tables import PageReader
from support.tables.score_tables import called, rollout, score

from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.store.storage import LocalStorage
from treadle.tasks.page.build import report_page
from treadle.tasks.page.sources import PageRun

Cells = Mapping[str, str]


def scores(
    model: str, verdicts: Sequence[bool | None], *, dataset: str = "wiki", **columns: Sequence[Any]
) -> list[dict[str, Any]]:
    """Rows of one model, one try at each question; a column has a value for each row."""
    return [
        score(f"{model}-{dataset}-{number}", f"{dataset}-{number}", verdict, model=model, dataset=dataset,
              **{name: values[number] for name, values in columns.items()})
        for number, verdict in enumerate(verdicts)
    ]  # fmt: skip


def check(row: Cells, expected: Cells) -> None:
    assert {name: row[name] for name in expected} == expected


def only(verdicts: set[int], num_questions: int) -> list[bool]:
    return [number in verdicts for number in range(num_questions)]


# ---- Pairs: ten questions. `first` gets 0 and 1 right, `second` all but 1: eight gained, one lost.

FIRST, SECOND = only({0, 1}, 10), only(set(range(10)) - {1}, 10)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> PageReader:
    run = counted_run(
        tmp_path_factory.mktemp("pair"), "run", [Scored(scores("first", FIRST)), Scored(scores("second", SECOND))]
    )
    return PageReader(report_page([run]))


@pytest.fixture(scope="module")
def across(tmp_path_factory: pytest.TempPathFactory) -> PageReader:
    """Return the same models, of two runs."""
    root = tmp_path_factory.mktemp("across")
    runs = [counted_run(root, name, [Scored(scores("m", given))]) for name, given in (("one", FIRST), ("two", SECOND))]
    return PageReader(report_page(runs))


def test_headline_has_shares_with_wilson_intervals(pair: PageReader) -> None:
    """2 and 9 of 10: Wilson's 95 % are .057 to .510 and .596 to .982."""
    table = pair.table("headline", "Figures")
    check(table.row("first"), {"rollouts": "10", "right, %": "20.0 [5.7, 51.0]", "sampled tokens": "10.0"})
    check(table.row("second"), {"rollouts": "10", "right, %": "90.0 [59.6, 98.2]", "calls": "0.00"})
    assert "20.0 % 5.7 to 51.0 % · 10 questions" in pair.text("headline")
    assert "second: 90.0 % (59.6 to 98.2)" in pair.text("headline"), "the chart in words"


@pytest.mark.parametrize(("given", "name"), [("pair", "first → second"), ("across", "m · one → two")])
def test_comparisons_have_raw_and_adjusted_p_values(given: str, name: str, request: pytest.FixtureRequest) -> None:
    """McNemar: 2 · (1 + 9) / 2⁹ = .0391. Signs of 9 equal differences of correctness per token: as much. Calls,
    turns and tokens are equal: 1. Holm for these five: 5 · .0391 = .1953, and no less for the second."""
    page: PageReader = request.getfixturevalue(given)
    check(
        page.table("comparisons", "Correctness").row(name),
        {"questions": "10", "first": "20.0", "second": "90.0", "p": "0.039", "adjusted": "0.195", "gained": "8",
         "lost": "1"},
    )  # fmt: skip
    others = page.table("comparisons", "Other figures")
    check(
        others.row(name, "wiki", "correctness per 1,000 tokens"),
        {"first": "20.0", "second": "90.0", "p": "0.039", "adjusted": "0.195"},
    )
    for figure in ("calls", "turns", "tokens without results"):
        check(others.row(name, "wiki", figure), {"p": "1.000", "adjusted": "1.000"})
    assert len(others.rows) == 5


def test_differences_have_the_interval_of_table_and_chart(pair: PageReader, tmp_path: Path) -> None:
    """Tango (1998) for 8 gained, 1 lost of 10: the ends are where his score statistic is 1.96."""
    cell = pair.table("comparisons", "Correctness").row("first → second")["difference [95 %]"]
    value, low, high = (float(part) for part in cell.replace("[", "").replace("]", "").replace(",", "").split())
    assert value == 70.0
    for end in (low, high):
        assert abs(tango(8, 1, 10, end / 100)) == pytest.approx(1.96, abs=0.01)
    assert f"first → second: +70.0 % ({low:+.1f} to {high:+.1f})" in pair.text("comparisons")


def tango(gained: int, lost: int, size: int, difference: float) -> float:
    """Score statistic of a paired difference of shares, after equation 8 of the paper."""
    a = 2 * size
    b = -gained - lost + (2 * size - gained + lost) * difference
    c = -lost * difference * (1 - difference)
    q = ((b * b - 4 * a * c) ** 0.5 - b) / (2 * a)
    return (gained - lost - size * difference) / (size * (2 * q + difference * (1 - difference))) ** 0.5


# ---- One agent with tools, votes and two judges; one without tools, on other rows of the same questions.

YES, NO, TIE, NONE = (6, 3, 1), (2, 8, 0), (5, 5, 0), (0, 0, 0)
VOTES = [NONE, NO, NO, NO, NO, NO, NO, YES, TIE, TIE]
"""The first of ten rollouts made no call; six are concise, one is redundant, two are open."""
CALLS = [0, *repeat(2, 9)]
STATUSES = [*repeat("answered", 7), "limit", "limit", "failed"]
TIMES: list[tuple[float, float, float] | None] = [
    *((float(whole), whole / 2, whole / 4) for whole in range(1, 9)),
    (0.5, 2.0, 0.0),  # continued: the whole is that of the last attempt alone
    None,
]


@pytest.fixture(scope="module")
def agent_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Make a run with 10 rollouts of each for `wiki`; `direct` makes no call, `agent` as counted above."""
    judged: list[str | None] = [None, "parsed", "parsed", "parsed", "fallback_rule", "failed", None, None, None, None]
    by = ["qa_em", "judge", "judge", "judge", "qa_f1", "judge", "qa_em", "status", "status", "status"]
    rows = scores(
        "agent", [True, True, True, False, False, None, True, False, False, False],
        status=STATUSES, scorer=by, judge_status=judged,
        calls_requested=CALLS, calls_executed=CALLS, tools=[[], *repeat(called(python=1, search=1)["tools"], 9)],
        failed_calls=[0, 2, 1, *repeat(0, 7)], completion_tokens=[10 * (number + 1) for number in range(10)],
        reasoning_tokens=list(repeat(20, 10)),
        votes_yes=[votes[0] for votes in VOTES], votes_no=[votes[1] for votes in VOTES],
        votes_abstained=[votes[2] for votes in VOTES],
    )  # fmt: skip
    agreed = {"num_judged_jointly": 4, "judge_agreement": 0.75, "judge_kappa": 0.5}
    return counted_run(
        tmp_path_factory.mktemp("agent"), "run",
        [Scored(scores("direct", only({0}, 10))), Scored(rows, TIMES, ("large", "small"), agreed)],
    )  # fmt: skip


@pytest.fixture(scope="module")
def agent(agent_run: Run) -> PageReader:
    return PageReader(report_page([agent_run]))


def test_headline_shows_call_and_vote_metrics_with_exclusions(agent: PageReader) -> None:
    """Right: 4 of 9 with a verdict. Efficiency: (1 + 3 · 1/2) / 9 = .278. Successful execution: one of the right ones
    had 2 failed calls: 3.5 / 9 = .389. Concise: (1 + 6) of 8 with a majority. Correctness per 1,000 tokens:
    4 · 50 / 9."""
    table = agent.table("headline", "Figures")
    row = table.row("agent")
    assert row["right, %"].startswith("44.4 [") and row["efficiency, %"].startswith("27.8 [")
    check(
        row,
        {"rollouts": "10", "successful execution, %": "38.9", "conciseness, %": "87.5 (2 open)", "calls": "1.80",
         "correctness per 1,000 tokens": "22.2", "undecided": "1"},
    )  # fmt: skip
    check(table.row("direct"), {"efficiency, %": "-", "conciseness, %": "-", "calls": "0.00", "undecided": "0"})
    figures = agent.table("headline", "All figures [95 %]")
    assert figures.row("conciseness with calls, %")["agent"].startswith("85.7 [")  # 6 of 7
    assert figures.row("calls without failure, %")["agent"].startswith("83.3 [")  # 15 of 18


@pytest.mark.parametrize(
    ("axis", "limits", "direct", "of_agent"),
    [
        ("correctness", "0 to 1", "0.1", "0.444"),
        ("efficiency", "0 to 1", "-", "0.278"),
        ("conciseness", "0 to 1", "-", "0.875"),
        ("successful execution", "0 to 1", "-", "0.389"),
        ("reasoning length (x1000)", "0 to 50", "10", "22.2"),
        ("rollouts without a verdict", "", "0", "1"),
        ("rollouts without a majority of votes", "", "0", "2"),
        ("rollouts that failed", "", "0", "1"),
    ],
)
def test_radar_values_are_also_in_a_table(
    agent: PageReader, axis: str, limits: str, direct: str, of_agent: str
) -> None:
    check(agent.table("radar", "Values").row(axis), {"range": limits, "direct": direct, "agent": of_agent})


def test_calls_and_lengths_are_means_over_rollouts(agent: PageReader) -> None:
    """Sampled tokens are 10, 20, ... 100; 3 of 18 calls failed."""
    table = agent.table("behaviour", "Means over rollouts")
    check(
        table.row("agent"),
        {"rollouts": "10", "calls": "1.80", "failed": "16.7%",
         "sampled tokens": "55", "median": "55", "most": "100", "tokens without results": "20"},
    )  # fmt: skip
    check(table.row("direct"), {"calls": "0.00", "failed": "-", "sampled tokens": "10", "median": "10"})
    text = agent.text("behaviour")
    assert "agent: 10% with 0, 90% with 2" in text and "agent: median 55, middle half 32 to 78 tokens" in text


def test_calls_are_listed_by_tool(agent: PageReader) -> None:
    """Each tool is called once in 9 of 10 rollouts."""
    table = agent.table("behaviour", "Calls by tool")
    for tool in ("python", "search"):
        check(
            table.row("agent", tool),
            {"calls per rollout": "0.90", "rollouts with it": "90.0%", "not run": "0", "failed": "0.0%"},
        )
        check(table.row("direct", tool), {"calls per rollout": "0.00", "rollouts with it": "0.0%", "failed": "-"})
    figures = agent.table("headline", "All figures [95 %]")
    assert figures.row("calls of python")["agent"].startswith("0.90 [")
    assert figures.row("calls of search without failure, %")["agent"].startswith("100.0 [")


def test_time_in_tools_is_listed_by_tool(agent: PageReader) -> None:
    """Seven measured rollouts with calls spend 8.75 of 35 seconds in tools, equally in both; one has no call."""
    table = agent.table("latency", "Seconds in tools")
    for tool in ("python", "search"):
        check(
            table.row("agent", tool),
            {"calls": "7", "seconds per call": "0.625", "seconds per rollout": "0.547"},
        )
    assert [row[0] for row in table.rows[1:]] == ["agent", "agent"]


def test_times_that_an_older_version_wrote_are_not_measured(agent_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    telemetry = PageRun.telemetry

    def without_tools(source: PageRun, record: StageRecord, kind: str) -> list[dict[str, Any]]:
        rows = telemetry(source, record, kind)
        return [{name: value for name, value in row.items() if name != "seconds_by_tool"} for row in rows]

    monkeypatch.setattr(PageRun, "telemetry", without_tools)
    assert b"Seconds of a rollout" not in report_page([agent_run])


def test_statuses_are_counted_on_the_page(agent: PageReader) -> None:
    table = agent.table("endings", "Rollouts by how they ended")
    check(table.row("agent"), {"answered": "7", "limit": "2", "failed": "1"})
    check(table.row("direct"), {"answered": "10", "limit": "0", "failed": "0"})


def test_durations_cover_measured_work_from_start_to_end(agent: PageReader) -> None:
    """1 to 8 seconds, half of them in the model, a quarter in tools; two of ten rollouts are not known."""
    table = agent.table("latency", "Seconds of a rollout")
    assert table.row("agent") == {
        "model": "agent", "rollouts": "10", "mean": "4.50", "median": "4.50", "95th percentile": "7.65",
        "in model": "2.25", "in tools": "1.12", "not measured": "2",
    }  # fmt: skip
    assert "continued after an interruption" in table.note
    assert "agent: model 2.25, tools 1.12, the rest 1.12 seconds" in agent.text("latency")


def test_durations_and_verdicts_are_shown_for_each_dataset(tmp_path: Path) -> None:
    """1 and 3 seconds for `a`, 20 for `b`; 8 over all rollouts."""
    rows = [
        *scores("m", [True, False], dataset="a"),
        *scores("m", [False], dataset="b", status=["limit"], scorer=["status"]),
    ]
    times = [(1.0, 0.5, 0.0), (3.0, 1.5, 1.0), (20.0, 19.0, 0.5)]
    page = PageReader(report_page([counted_run(tmp_path, "run", [Scored(rows, times)])]))
    check(page.table("latency", "Seconds of a rollout").row("m"), {"rollouts": "3", "mean": "8.00", "in model": "7.00"})
    # the fold of the datasets contains its title, its table does not
    by_dataset = page.table("latency", "Seconds of a rollout by data set")
    check(by_dataset.row("a", "m"), {"rollouts": "2", "mean": "2.00", "median": "2.00", "in tools": "0.500"})
    check(by_dataset.row("b", "m"), {"rollouts": "1", "mean": "20.0", "95th percentile": "20.0", "in model": "19.0"})
    verdicts = page.table("decided", "Verdicts", number=1)
    check(verdicts.row("a", "m"), {"rollouts": "2", "by rules": "2", "no answer": "0"})
    check(verdicts.row("b", "m"), {"rollouts": "1", "by rules": "0", "no answer": "1"})


def test_verdict_sources_are_counted_by_rules_and_judges(agent: PageReader) -> None:
    """Three of seven answers are decided by judges and three by rules, one of them because judges disagreed; one reply
    could not be read.
    """
    verdicts = agent.table("decided", "Verdicts")
    check(
        verdicts.row("agent"), {"rollouts": "10", "by rules": "3", "by judges": "3", "no answer": "3", "undecided": "1"}
    )
    check(verdicts.row("direct"), {"by rules": "10", "by judges": "0", "no answer": "0", "undecided": "0"})
    check(
        agent.table("decided", "Judges").row("agent"), {"asked": "5", "decided": "3", "fell back": "1", "not read": "1"}
    )
    check(
        agent.table("decided", "Votes on wasted calls").row("agent"),
        {"concise": "6", "redundant": "1", "undecided": "2"},
    )
    rules = agent.table("decided", "Rollouts by what decided")
    check(rules.row("judge"), {"agent": "4", "direct": "0"})
    check(rules.row("qa_em"), {"agent": "2", "direct": "10"})
    assert rules.rows[1][0] == "qa_em", "the most frequent stands first"


def test_agreement_is_that_of_the_judges_of_a_model(agent: PageReader) -> None:
    table = agent.table("decided", "Judges' agreement")
    assert table.rows[1:] == [["agent", "large, small", "4", "75.0 %", "0.50"]]


def test_agreement_by_dataset_matches_the_verdicts(tmp_path: Path) -> None:
    """Two of four verdicts are shared for `a`, as many as by chance; both for `b`."""

    def judge_verdicts(large: bool, small: bool) -> str:
        said = {"large": large, "small": small}
        return json.dumps({name: {"verdict": one, "status": "parsed", "raw": []} for name, one in said.items()})

    given = {"a": [(True, True), (False, False), (True, False), (False, True)], "b": [(True, True), (False, False)]}
    rows = [
        row
        for name, verdicts in given.items()
        for row in scores(
            "m", [one and other for one, other in verdicts], dataset=name, scorer=["judge"] * len(verdicts),
            judge_status=["parsed"] * len(verdicts), judges=[judge_verdicts(*pair) for pair in verdicts],
        )
    ]  # fmt: skip
    measured = {"num_judged_jointly": 6, "judge_agreement": 4 / 6, "judge_kappa": 1 / 3}
    models = [Scored(rows, judges=("large", "small"), metrics=measured)]
    page = PageReader(report_page([counted_run(tmp_path, "run", models)]))
    whole, by_dataset = (page.table("decided", "Judges' agreement", number=number) for number in (0, 1))
    assert whole.rows[1:] == [["m", "large, small", "6", "66.7 %", "0.33"]]
    assert by_dataset.rows[1:] == [["a", "m", "4", "50.0 %", "0.00"], ["b", "m", "2", "100.0 %", "1.00"]]


def test_agreement_needs_more_than_one_judge(pair: PageReader) -> None:
    assert "agreement" not in pair.text("decided").lower()
    assert "No model judged answers." in pair.text("decided")


# ---- Several tries, headline sets, data sets that not all models were asked.


def test_several_samples_have_pass_at_k(tmp_path: Path) -> None:
    """Right 4, 2 and 0 times of 4: of two tries one is right with 1, 5/6 and 0; of four with 1, 1 and 0."""
    rows = [
        score(f"{key}-{place}", key, place < right, model="m", sample_index=place)
        for key, right in (("q0", 4), ("q1", 2), ("q2", 0))
        for place in range(4)
    ]
    page = PageReader(report_page([counted_run(tmp_path, "run", [Scored(rows)])]))
    row = page.table("headline", "Figures").row("m")
    check(row, {"rollouts": "12", "pass@2, %": "61.1", "pass@4, %": "66.7"})
    assert row["right, %"].startswith("50.0 [")


ONE_CALL = {name: [value] * 4 for name, value in called(search=1).items()}
"""Columns of four rollouts with a call each: without any, a radar has too few figures."""


def asked(model: str, right: Mapping[str, int]) -> Scored:
    """Return four questions of each dataset, so many of them correct."""
    return Scored(
        [
            row
            for name, number in right.items()
            for row in scores(model, only(set(range(number)), 4), dataset=name, **ONE_CALL)
        ]
    )


def test_averages_cover_the_headline_and_all_datasets(tmp_path: Path) -> None:
    """1, 3 and 4 of 4 right: 50 over the first two, 66.7 over all."""
    models = [asked("m", {"math500": 1, "2wiki": 3, "world": 4})]
    page = PageReader(report_page([counted_run(tmp_path, "run", models, headline=("math500", "2wiki"))]))
    row = page.table("headline", "Average of 2wiki, math500").row("m")
    assert row["rollouts"] == "8" and row["right, %"].startswith("50.0 [")
    table = page.table("headline", "Each data set")
    shares = {name: table.row(name, "m")["right, %"].split()[0] for name, *_ in table.rows[1:]}
    assert shares == {
        "average of 2wiki, math500": "50.0", "average of every data set": "66.7", "2wiki": "75.0", "math500": "25.0",
        "world": "100.0",
    }  # fmt: skip
    check(page.table("radar", "Values").row("correctness"), {"m": "0.5"})


def test_models_of_other_datasets_keep_their_metrics_and_share_common_questions(tmp_path: Path) -> None:
    """`both` gets 1 and 4 of 4, `one` 2 and 0 of 4 and of another; they share `a` alone."""
    models = [asked("both", {"a": 1, "b": 4}), asked("one", {"a": 2, "c": 0})]
    page = PageReader(report_page([counted_run(tmp_path, "run", models)]))
    table = page.table("headline", "Figures of different data sets")
    for name, datasets, share in (("both", "a, b", "62.5"), ("one", "a, c", "25.0")):
        row = table.row(name)
        assert row["data sets"] == datasets and row["right, %"].startswith(f"{share} [")
    pairs = page.table("comparisons", "Correctness")
    assert [row[:3] for row in pairs.rows[1:]] == [["both → one", "a", "4"]]
    check(pairs.row("both → one"), {"first": "25.0", "second": "50.0", "gained": "1", "lost": "0", "p": "1.000"})


# ---- What is not there, or too much.


def test_table_damaged_in_its_middle_counts_as_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve rollouts in three files, of which the second is damaged: four rollouts are not ten."""
    monkeypatch.setattr("treadle.core.store.parquet.ROW_GROUP_ROWS", 4)
    monkeypatch.setattr("treadle.core.store.parquet.PART_ROW_GROUPS", 1)
    run = counted_run(tmp_path, "run", [Scored(scores("m", only({0, 1, 2}, 12)))])
    assert isinstance(run.storage, LocalStorage)
    scored = next(record for record in run.records() if record.stage == "scores").outputs["scores"]
    parts = sorted((tmp_path / scored.folder).glob("data/*.parquet"))
    assert len(parts) == 3
    parts[1].write_bytes(parts[1].read_bytes()[:-1] + b"!")
    page = report_page([run])
    reader = PageReader(page)
    assert reader.table("headline", "Figures").row("m")["rollouts"] == "12", "by the report"
    assert "Not shown of 1/scores@model0: " in page.decode()
    for section in ("behaviour", "latency", "endings"):
        assert f'<section id="{section}"' not in page.decode()


@pytest.mark.parametrize("damage", ["gone", "cut short"])
def test_lost_durations_are_counted_as_not_measured(tmp_path: Path, damage: str) -> None:
    """Half of the times are known: those of the other model."""
    run = counted_run(tmp_path, "run", [Scored(scores(name, only({0}, 4))) for name in ("lost", "kept")])
    record = next(record for record in run.records() if record.address == "1/rollouts@model0")
    log = tmp_path / record.telemetry["rollout_telemetry"]
    if damage == "gone":
        log.unlink()
    else:
        log.write_bytes(log.read_bytes()[:100])
    page = report_page([run])
    table = PageReader(page).table("latency", "Seconds of a rollout")
    check(table.row("lost"), {"rollouts": "4", "mean": "-", "in tools": "-", "not measured": "4"})
    check(table.row("kept"), {"rollouts": "4", "mean": "0.750", "not measured": "0"})
    assert ("Not shown of 1/rollouts@model0" in page.decode()) is (damage == "cut short")


def test_durations_are_those_of_the_scored_rollouts(tmp_path: Path) -> None:
    """Not of those that were made in their place since."""
    run = counted_run(tmp_path, "run", [Scored(scores(name, only({0}, 4))) for name in ("anew", "kept")])
    rows = [rollout(f"anew-wiki-{number}", f"wiki-{number}", [], seed=1) for number in range(4)]
    add_rollouts(run, 0, rows, [(9.0, 9.0, 0.0)] * 4)
    table = PageReader(report_page([run])).table("latency", "Seconds of a rollout")
    check(table.row("anew"), {"rollouts": "4", "mean": "-", "not measured": "4"})
    check(table.row("kept"), {"rollouts": "4", "mean": "0.750", "not measured": "0"})


def test_data_too_large_to_draw_is_reported(tmp_path: Path) -> None:
    """Nine models: rows for all of them, polygons and large numbers for eight."""
    names = [f"m{number}" for number in range(9)]
    page = report_page(
        [counted_run(tmp_path, "run", [Scored(scores(name, only({0, 1}, 4), **ONE_CALL)) for name in names])]
    )
    reader = PageReader(page)
    assert "There are 8 colours for 9 models" in page.decode()
    assert "Only the first 8 of 9 models are drawn." in reader.text("radar")
    assert list(polygons(reader.text("radar"))) == names[:8]
    assert "The first 8 of 9; the table has all." in reader.text("headline")
    assert len(reader.table("headline", "Figures").rows) == 10
    assert len(reader.table("radar", "Values").rows[0]) == 11


def polygons(text: str) -> Iterator[str]:
    """Yield the models that the words of a radar are about."""
    words = next(line for line in text.split("Behaviour") if "correctness " in line)
    return (part.split(":")[0].strip() for part in words.split(";"))


def test_first_of_many_datasets_and_pairs_are_drawn_and_all_listed(tmp_path: Path) -> None:
    """14 data sets and their average, by three pairs of models."""
    right = {f"d{number:02}": number % 3 for number in range(14)}
    models = [
        asked(name, {name: (value + place) % 3 for name, value in right.items()}) for place, name in enumerate("xyz")
    ]
    page = PageReader(report_page([counted_run(tmp_path, "run", models)]))
    assert "Only the first 12 of 15 averages and data sets are drawn." in page.text("headline")
    assert len(page.table("headline", "Each data set").rows) == 1 + 15 * 3
    assert "Only the first 24 of 45 differences are drawn." in page.text("comparisons")
    assert len(page.table("comparisons", "Correctness").rows) == 1 + 45
