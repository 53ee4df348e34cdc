"""Judging a finished run again from the command line: other judges, other votes, and no new rollouts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.rollouts.scores_bench import asked, server
from support.runs.command_line import Desk, num_requests, tutor
from support.servers.scripted_server import Fault, Item, RecordedRequest

CONFIG = """
[models.base]
model = "treadle-tutor"
endpoints = [{{ url = "{url}" }}]

[flow]
models = ["base"]

[questions]
sources = [{{ path = "questions.jsonl", domain = "math" }}]

[environment]
search = {{ enabled = false }}
python = {{ enabled = false }}

[scores]
symbolic = false
"""


def judge(name: str, url: str) -> tuple[str, ...]:
    table = f'{{model="{name}", endpoints=[{{url="{url}"}}], retry_limit=0}}'
    return ("--set", f"models.{name}={table}")


def judged_by(*names: str) -> tuple[str, ...]:
    return ("--set", f"scores.judges.models={list(names)}")


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path)
    # The tutor's answers are unknown to the rules, so judges are asked about each one.
    desk.write("questions.jsonl", *({"question": f"What is thing {n}?", "answer": f"thing {n}"} for n in range(4)))
    return desk


def says(word: str) -> Any:
    def reply(request: RecordedRequest) -> Item:
        return word

    return reply


async def test_run_can_be_rejudged_by_other_judges_without_new_rollouts(desk: Desk) -> None:
    async with server(says("Correct"), "first") as first, server(says("Incorrect"), "second") as second:
        with tutor() as url:
            (desk.folder / "my.toml").write_text(CONFIG.format(url=url))
            await asyncio.to_thread(desk.treadle, "run", "my.toml", "--run", "r")
            num_rolled = num_requests(url)
        answered = [row["prediction"] for row in desk.rows("r", "1/scores@base", "scores")]
        assert num_rolled and all(answered), "there is something to judge"

        async def again(*more: str) -> list[dict[str, Any]]:
            done = await asyncio.to_thread(desk.treadle, "run", "--run", "r", *more, "--json")
            records: list[dict[str, Any]] = done.succeeded().json()
            assert [record["reused"] for record in records if record["stage"] in ("questions", "rollouts")] == [
                True
            ] * 2
            return records

        by_first = (*judge("first", first.url), *judged_by("first"))
        assert not any(record["reused"] for record in await again(*by_first) if record["stage"] in ("scores", "report"))
        num_asked = len(asked(first))
        assert num_asked and all(row["correct"] for row in desk.rows("r", "1/scores@base", "scores"))
        # The run has them in its configuration now.
        assert all(record["reused"] for record in await again())
        dry = ("run", "--run", "r", *judge("second", second.url), *judged_by("first", "second"), "--dry-run")
        told = (await asyncio.to_thread(desk.treadle, *dry)).succeeded().out
        assert f"{num_asked} judgements exist already" in told and "refuses" not in told
        both = await again(*judge("second", second.url), *judged_by("first", "second"))
        assert (len(asked(first)), len(asked(second))) == (num_asked, num_asked), "only the new one is asked"
        metrics = next(record["metrics"] for record in both if record["stage"] == "scores")
        assert (metrics["judge_agreement"], metrics["judge_fallback_rule"]) == (0.0, 4)
        await again(*judged_by("first"))
        assert (len(asked(first)), len(asked(second))) == (num_asked, num_asked)
        assert all(row["correct"] for row in desk.rows("r", "1/scores@base", "scores"))


async def test_removed_judge_does_not_become_an_agent(desk: Desk) -> None:
    async with server(says("Correct"), "large") as large:
        with tutor() as url:
            text = CONFIG.format(url=url).replace('[flow]\nmodels = ["base"]\n', "")
            (desk.folder / "my.toml").write_text(text)
            named = (*judge("large", large.url), *judged_by("large"))
            done = await asyncio.to_thread(desk.treadle, "run", "my.toml", "--run", "r", *named)
            done.succeeded()
            done = await asyncio.to_thread(desk.treadle, "run", "--run", "r", *judged_by(), "--json")
            made = [record["address"] for record in done.succeeded().json()]
            assert made == ["1/questions", "1/rollouts@base", "1/scores@base", "1/report"]
            done = await asyncio.to_thread(desk.treadle, "run", "--run", "r", "--set", 'flow.models=["large"]')
            done.failed("flow.models[0]: 'base' -> 'large'", code=2)
            # The initial config file of the run does not contain the judge.
            (await asyncio.to_thread(desk.treadle, "run", "my.toml", "--run", "r")).succeeded()


async def test_only_the_judges_of_a_run_may_change(desk: Desk) -> None:
    with tutor() as url:
        (desk.folder / "my.toml").write_text(CONFIG.format(url=url))
        (await asyncio.to_thread(desk.treadle, "run", "my.toml", "--run", "r")).succeeded()
        for change in ("rollouts.sampling.top_p=0.5", "models.base.model=another"):
            done = await asyncio.to_thread(desk.treadle, "run", "--run", "r", "--set", change)
            done.failed("choose a new run id", code=2)


async def test_accepted_gaps_stop_no_run_and_are_not_filled_by_force(desk: Desk) -> None:
    is_broken = [True]

    def reply(request: RecordedRequest) -> Item:
        return Fault.status(500) if is_broken else "Correct"

    async with server(reply, "large") as large:
        with tutor() as url:
            (desk.folder / "my.toml").write_text(CONFIG.format(url=url))
            often = ("--set", "scores.pending_retries=0", "--set", "scores.max_error_rate=1")
            begin = ("run", "my.toml", "--run", "r", *judge("large", large.url), *judged_by("large"), *often)
            (await asyncio.to_thread(desk.treadle, *begin)).failed("judgements could not be finished", code=1)
            (await asyncio.to_thread(desk.treadle, *begin, "--accept-failures")).succeeded()
            again = (await asyncio.to_thread(desk.treadle, "run", "--run", "r")).succeeded()
            assert "1/scores@base is unchanged, its accepted failures failed again" in again.err
            told = (await asyncio.to_thread(desk.treadle, "status", "--run", "r")).succeeded().out
            assert "1/scores@base completed with accepted gaps, and an attempt to fill them failed: " in told
            assert "treadle stage 1/scores@base --run r" in told and "--force" not in told
            is_broken.clear()
            (await asyncio.to_thread(desk.treadle, "run", "--run", "r")).succeeded()
            assert all(row["correct"] for row in desk.rows("r", "1/scores@base", "scores"))
            told = (await asyncio.to_thread(desk.treadle, "status", "--run", "r")).succeeded().out
            assert "gaps" not in told
