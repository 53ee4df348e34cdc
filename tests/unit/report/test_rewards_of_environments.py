"""The report of rollouts that their environment scores: rewards and turns, nothing about answers or missing tools."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.tables.score_tables import new_run, put_rows, question, score
from support.tables.scored_rollouts import scored

from treadle.core.errors import ConfigError
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance
from treadle.datagen.questions.tables import QUESTIONS
from treadle.eval.config import ReportSettings
from treadle.eval.dataset_figures import dataset_figures
from treadle.eval.metrics import FIGURES
from treadle.eval.scored_rollout import ScoredRollout
from treadle.eval.tables import SCORES
from treadle.report.comparison_rows import comparison_rows
from treadle.report.entry import REPORT_STAGE
from treadle.report.layout import MIXED_NOTE, headline_table, summary_lines
from treadle.report.markdown import render_report
from treadle.report.summary import check_environments, model_rows, shown_averages
from treadle.tasks.page.build import report_page

SETTINGS = ReportSettings(bootstrap_samples=200)


def rewarded(reward: float | None, number: int, **given: Any) -> ScoredRollout:
    """Return a dialogue of three turns that its environment scored."""
    fields = {"question_key": f"q{number}", "scorer": "environment", "status": "finished", "num_turns": 3}
    return scored(reward, correct=None if reward is None else reward > 0.5, **fields | given)


def rows_of(rollouts: list[ScoredRollout]) -> dict[str, dict[str, Any]]:
    return {row["figure"]: row for row in model_rows("m", dataset_figures(rollouts), SETTINGS)}


def test_rewards_are_neither_shares_nor_clipped() -> None:
    rows = rows_of([rewarded(-2.0, 0), rewarded(4.0, 1, truncated=True), rewarded(None, 2)])
    assert rows["reward"]["value"] == 1.0 and rows["reward"]["low"] < 0 and rows["reward"]["high"] > 1
    assert rows["reward"]["num_undecided"] == 1 and rows["accuracy"]["value"] == 0.5
    assert rows["num_turns"]["value"] == 3 and rows["truncated"]["value"] == 1 / 3
    missing = {"score", "em", "f1", "efficiency", "calls_requested", "tool_use", "conciseness"}
    assert not missing & rows.keys() and not any(name.startswith(("tools_used", "calls:")) for name in rows)


def test_lost_rollouts_are_wrong_and_have_no_reward() -> None:
    rows = rows_of([rewarded(-3.0, 0), rewarded(0.0, 1, status="failed", scorer="status")])
    assert rows["reward"]["value"] == -3.0 and rows["reward"]["num_undecided"] == 1 and "score" not in rows
    assert rows["accuracy"]["value"] == 0 and rows["accuracy"]["num_undecided"] == 0


def test_calls_are_shown_if_the_environment_has_tools() -> None:
    rows = rows_of([rewarded(1.0, 0, calls_requested=2, calls_executed=2), rewarded(1.0, 1)])
    assert rows["calls_requested"]["value"] == 1.0 and rows["call_success"]["value"] == 1.0
    assert "search_calls" not in rows


def test_answers_have_no_rewards() -> None:
    rows = rows_of([scored(1.0, question_key="a"), scored(0.0, question_key="b")])
    assert rows.keys() & FIGURES.keys() == {
        name for name, figure in FIGURES.items() if figure.of != "rewards" and not figure.is_money
    }


def test_models_are_compared_by_reward() -> None:
    sides = {
        "weak": [rewarded(0.25, number, num_turns=6) for number in range(12)],
        "strong": [rewarded(0.75, number) for number in range(12)],
    }
    rows = {row["figure"]: row for row in comparison_rows(sides, SETTINGS)}
    assert rows.keys() == {"reward", "accuracy", "num_turns", "reasoning_tokens"}
    assert rows["reward"]["difference"] == 0.5 and len(rows["reward"]["gained"]) == 12
    assert rows["num_turns"]["difference"] == -3


def test_mixed_data_sets_keep_their_own_figures() -> None:
    rollouts = [rewarded(0.25, 0, dataset="guess"), scored(1.0, dataset="sums", question_key="s")]
    rows = list(model_rows("m", dataset_figures(rollouts), SETTINGS))
    has = {name: {row["figure"] for row in rows if row["dataset"] == name} for name in ("guess", "sums", "all")}
    assert "reward" in has["guess"] - has["sums"] and "score" in has["sums"] - has["guess"]
    assert "accuracy" in has["all"] and not {"reward", "score"} & has["all"]
    text = render_report(rows, [], SETTINGS)
    line = next(line for line in text.splitlines() if line.startswith("| m ") and "| guess " in line)
    assert [cell.strip() for cell in line.split("|")][6:11] == ["-", "0.25", "-", "3.00", "-"]


def test_tasks_are_in_no_area() -> None:
    rollouts = [rewarded(0.25, 0, dataset=name, domain="task") for name in ("guess", "draw")]
    rollouts += [scored(1.0, dataset=name, question_key="s") for name in ("wiki", "hotpot")]
    groups = shown_averages({part.dataset: part.area for part in dataset_figures(rollouts)}, ())
    assert groups["knowledge"] == ["hotpot", "wiki"]


def report_run(root: Path) -> Run:
    run = new_run(root)
    put_rows(run, "1/questions", QUESTIONS, [question(f"q{number}", []) for number in range(4)])
    given = {"scorer": "environment", "status": "finished", "num_turns": 5}
    inputs = []
    for model, first in (("base", 0), ("tuned", 2)):
        rows = [
            score(f"{model}{number}", f"q{number}", first + number > 2, model=model, **given)
            | {"score": (first + number) / 4}
            for number in range(4)
        ]
        inputs.append(put_rows(run, f"1/scores@{model}", SCORES, rows))
    execute(
        Instance(
            address=Address.parse("1/report"), stage=REPORT_STAGE, settings=SETTINGS, inputs={"scores": tuple(inputs)}
        ),
        run,
    )
    return run


def test_page_shows_rewards_and_turns_and_no_calls(tmp_path: Path) -> None:
    page = report_page([report_run(tmp_path)]).decode()
    assert ">reward<" in page and ">turns<" in page and "by environment" in page and "Turns and lengths" in page
    assert "finished" in page and "base → tuned" in page and "Correctness" not in page
    for absent in (">Python<", ">searches<", ">calls<", "efficiency", ">by rules<", "exact match", ">answered<"):
        assert absent not in page, absent


def guess_and_draw(number: int) -> list[ScoredRollout]:
    """Return rollouts of two environments that score themselves, on other scales, and answers."""
    return [
        rewarded(0.25, number, dataset="guess", environment="guess"),
        rewarded(250.0, number, dataset="draw", environment="draw"),
        scored(1.0, dataset="sums", question_key=f"s{number}", domain="math"),
    ]


def test_rewards_of_two_environments_are_not_averaged() -> None:
    rollouts = [one for number in range(3) for one in guess_and_draw(number)]
    for chosen in (rollouts, [one for one in rollouts if one.is_reward]):
        rows = model_rows("m", dataset_figures(chosen), SETTINGS)
        figures = {row["figure"]: row for row in rows if row["dataset"] == "all"}
        assert "accuracy" in figures and not {"reward", "score"} & figures.keys()
        assert figures["accuracy"]["environments"] == sorted({one.environment for one in chosen})
    of_one = [rewarded(1.0, number, dataset=name, environment="guess") for number in range(3) for name in ("a", "b")]
    rows = {(row["dataset"], row["figure"]): row for row in model_rows("m", dataset_figures(of_one), SETTINGS)}
    assert rows["all", "reward"]["value"] == 1.0 and rows["all", "reward"]["environments"] == ["guess"]
    other = [replace(one, score=0.5, correct=False) for one in rollouts]
    compared = {(row["dataset"], row["figure"]) for row in comparison_rows({"a": rollouts, "b": other}, SETTINGS)}
    assert {("guess", "reward"), ("all", "accuracy")} <= compared and ("all", "reward") not in compared


def test_tables_name_environments_if_there_are_several() -> None:
    rollouts = [one for number in range(3) for one in guess_and_draw(number)]
    rows = list(model_rows("m", dataset_figures(rollouts), SETTINGS))
    table = headline_table(summary_lines(rows))
    assert table.header[:3] == ("model", "data set", "environment") and table.num_names == 3
    assert [row[1:3] for row in table.rows] == [
        ("draw", "draw"), ("guess", "guess"), ("sums", "default"), ("all", "default, draw, guess"),
    ]  # fmt: skip
    text = render_report(rows, [], SETTINGS)
    assert MIXED_NOTE in text and "| data set | environment " in text
    alone = render_report(list(model_rows("m", dataset_figures(rollouts[:1]), SETTINGS)), [], SETTINGS)
    assert MIXED_NOTE not in alone and "| data set | environment  " not in alone.partition("## ")[0]


def test_rewards_are_in_no_area_whatever_their_domain() -> None:
    rollouts = [rewarded(9.0, 0, dataset="games", domain="qa", environment="guess")]
    rollouts += [scored(1.0, dataset=name, question_key=name) for name in ("wiki", "hotpot")]
    groups = shown_averages({part.dataset: part.area for part in dataset_figures(rollouts)}, ())
    assert groups["knowledge"] == ["hotpot", "wiki"] and groups["all"] == ["games", "hotpot", "wiki"]


def test_data_set_of_two_environments_is_refused() -> None:
    check_environments({"a": {"default"}, "b": {"guess"}})
    with pytest.raises(ConfigError, match=r"data set 'a' has tasks of the environments default, guess"):
        check_environments({"a": {"guess", "default"}})
