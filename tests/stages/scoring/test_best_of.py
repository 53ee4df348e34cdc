"""Picking the best of several attempts by a judge behind real HTTP: what is asked, kept, left out, and counted."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.rollouts.scores_bench import ScoresBench, asked, role, server
from support.servers.scripted_server import Fault, Item, RecordedRequest
from support.tables.score_tables import question, rollout

from treadle.core.errors import JobsPending, StageFailed
from treadle.eval.config import ReportSettings
from treadle.eval.dataset_figures import dataset_figures
from treadle.eval.scored_rollout import ScoredRollout
from treadle.report.summary import model_rows

GOLD = "Kallaste Oru"


def attempts(key: str, *answers: str) -> list[dict[str, Any]]:
    return [
        rollout(
            f"{key}-{number}", key, [("think", f"{key} thought {number}"), ("answer", f"<answer>{answer}</answer>")],
            sample_index=number, status="answered" if answer else "no_answer",
        )
        for number, answer in enumerate(answers)
    ]  # fmt: skip


def settings(url: str, *, seed: int = 0, num_attempts: int = 3, **options: Any) -> dict[str, Any]:
    best_of = {"model": "chooser", "attempts": num_attempts}
    base = {"symbolic": False, "pending_retries": 0, "pending_pause_s": 0.0, "best_of": best_of, **options}
    return {"options": base, "best_of": role(url, "chooser"), "best_of_digest": "d", "seed": seed}


def picking(answer: str) -> Callable[[RecordedRequest], Item]:
    """Return a judge that picks the attempt with this answer, wherever it is shown."""

    def reply(request: RecordedRequest) -> Item:
        found = re.search(rf"<attempt_(\d)_final_answer_\w+>\n(?:{answer})\n", request.text)
        return f"<choice>{found[1] if found is not None else 0}</choice>"

    return reply


def figure(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Return the row of the report's summary for a figure."""
    rollouts = [ScoredRollout.from_row({**row, "judges": "{}"}) for row in rows]
    made = model_rows("base", dataset_figures(rollouts), ReportSettings(bootstrap_samples=100))
    return next(row for row in made if row["figure"] == name)


async def test_the_picked_attempt_decides_without_the_gold_answer(tmp_path: Path) -> None:
    """Only the first attempts are compared, and only once, over repeated runs of the stage."""
    questions = [question("a", [GOLD]), question("b", ["Ilme"])]
    rollouts = [*attempts("a", "wrong", "right?", "none", GOLD), *attempts("b", "other", "Ilme", "third", "Ilme")]
    bench = ScoresBench(tmp_path, questions, rollouts)
    async with server(picking("Ilme|right."), model="chooser") as chooser:
        record = await bench.score(settings(chooser.url))
        again = await bench.score(settings(chooser.url), force=True)
    rows = bench.rows(record)
    assert [row["best_of"] for row in rows] == [
        "passed_over", "picked", "passed_over", None, "passed_over", "picked", "passed_over", None,
    ]  # fmt: skip
    picked = figure(rows, "best_of@3")
    assert (picked["value"], picked["num_undecided"], picked["num_questions"]) == (0.5, 0, 2)
    assert [row["picked"] for row in bench.rows(record, "judgements")] == [1, 1]
    assert record.metrics["usage"]["best_of:chooser"]["calls"] == 2 and len(asked(chooser)) == 4  # force asks again
    assert bench.rows(again) == rows
    assert not any(GOLD in request.text for request in asked(chooser))


async def test_a_finished_choice_is_not_asked_for_again(tmp_path: Path) -> None:
    """Also if verdicts are made again because a judge of answers was added."""
    bench = ScoresBench(tmp_path, [question("a", ["x"])], attempts("a", "u", "v", "w"))
    async with server(picking("v"), model="chooser") as chooser:
        await bench.score(settings(chooser.url))
        await bench.score(settings(chooser.url, max_error_rate=0.5))
        assert len(asked(chooser)) == 1
        await bench.score(settings(chooser.url, num_attempts=2))
    assert len(asked(chooser)) == 2


async def test_an_unreadable_choice_is_left_out_and_never_wrong(tmp_path: Path) -> None:
    questions = [question(key, ["x"]) for key in "abc"]
    rollouts = [one for key in "abc" for one in attempts(key, "x", "v", "w")]
    bench = ScoresBench(tmp_path, questions, rollouts)

    def reply(request: RecordedRequest) -> Item:
        return "I cannot say" if "a thought" in request.text else picking("x")(request)

    async with server(reply, model="chooser") as chooser:
        record = await bench.score(settings(chooser.url))
    rows = bench.rows(record)
    assert [row["best_of"] for row in rows[:3]] == ["undecided"] * 3 and len(asked(chooser)) == 2 + 1 + 1
    picked = figure(rows, "best_of@3")
    assert (picked["value"], picked["num_undecided"]) == (1.0, 3)
    assert record.metrics["best_of_undecided"] == 3


async def test_a_judge_that_never_chooses_fails_the_stage(tmp_path: Path) -> None:
    bench = ScoresBench(tmp_path, [question("a", ["x"])], attempts("a", "x", "v", "w"))
    async with server(lambda request: "hm", model="chooser") as chooser:
        with pytest.raises(StageFailed, match="cannot be parsed; set another scores.best_of.model"):
            await bench.score(settings(chooser.url))


async def test_failed_requests_leave_choices_pending(tmp_path: Path) -> None:
    questions = [question(key, ["x"]) for key in "ab"]
    bench = ScoresBench(tmp_path, questions, [*attempts("a", "x", "v", "w"), *attempts("b", "x", "v", "w")])

    def reply(request: RecordedRequest) -> Item:
        return Fault(500) if "a thought" in request.text else picking("x")(request)

    async with server(reply, model="chooser") as chooser:
        with pytest.raises(JobsPending):
            await bench.score(settings(chooser.url))
        record = await bench.score(settings(chooser.url, max_error_rate=0.5), accept_failures=True)
        rows = bench.rows(record)
        assert [row["best_of"] for row in rows[:3]] == ["undecided"] * 3
        assert (figure(rows, "best_of@3")["value"], record.metrics["num_judgements_missing"]) == (1.0, 1)
    async with server(picking("x"), model="chooser") as chooser:
        record = await bench.score(settings(chooser.url, max_error_rate=0.5))
        assert len(asked(chooser)) == 1 and figure(bench.rows(record), "best_of@3")["num_undecided"] == 0


async def test_no_request_is_made_without_an_alternative(tmp_path: Path) -> None:
    """Equal answers have equal verdicts, and an attempt without an answer is never right."""
    questions = [question(key, ["x"]) for key in "abc"]
    rollouts = [*attempts("a", "x", "x", "x"), *attempts("b", "", "x", ""), *attempts("c", "", "", "")]
    bench = ScoresBench(tmp_path, questions, rollouts)
    async with server(lambda request: "hm", model="chooser") as chooser:
        rows = bench.rows(await bench.score(settings(chooser.url)))
    assert not asked(chooser)
    assert [row["rollout_key"] for row in rows if row["best_of"] == "picked"] == ["a-0", "b-1", "c-0"]
    assert figure(rows, "best_of@3")["value"] == pytest.approx(2 / 3)


async def test_attempts_may_lie_apart(tmp_path: Path) -> None:
    """Imported rollouts may come round by round."""
    rows = [*attempts("a", "x", "v"), *attempts("b", "u", "x")]
    bench = ScoresBench(tmp_path, [question("a", ["x"]), question("b", ["x"])], [rows[place] for place in (1, 2, 0, 3)])
    async with server(picking("x"), model="chooser") as chooser:
        made = bench.rows(await bench.score(settings(chooser.url, num_attempts=2)))
    assert sorted(row["rollout_key"] for row in made if row["best_of"] == "picked") == ["a-0", "b-1"]


async def test_too_few_attempts_are_refused_before_any_request(tmp_path: Path) -> None:
    bench = ScoresBench(tmp_path, [question("a", ["x"])], attempts("a", "x", "v"))
    async with server(picking("x"), model="chooser") as chooser:
        with pytest.raises(StageFailed, match="no question has 3 rollouts to choose from"):
            await bench.score(settings(chooser.url))
    assert not asked(chooser)
