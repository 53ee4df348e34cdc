"""`treadle run` announces repeated costs, and a killed run keeps paid work when questions change."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.runs.command_line import Desk, num_requests, tutor
from support.runs.processes import until

CONFIG = """
[models.base]
model = "treadle-tutor"
endpoints = [{{ url = "{url}" }}]
prompt_price_per_million = 1.0
completion_price_per_million = 1.0

[flow]
models = ["base"]
stages = ["rollouts", "scores", "report"]

[questions]
sources = [{{ path = "questions.jsonl", domain = "math" }}]

[environment]
search = {{ enabled = false }}
python = {{ enabled = false }}

[rollouts]
samples_per_question = 2

[scores]
symbolic = false
"""
NUM = 5
TURNS = 2
"""Requests of a rollout here."""
PREFLIGHT = 3
"""Requests of an attempt with open jobs before its first rollout; a new run has asked the same once before."""


def rows(num: int = NUM, **changed: str) -> list[dict[str, Any]]:
    """Questions, of which those with a number in `changed` (`q3`) have another text."""
    return [
        {"question": changed.get(f"q{n}", f"How many legs have {n} horses, {n} cows?"), "answer": "1", "source": "legs"}
        for n in range(num)
    ]


@contextmanager
def made(folder: Path) -> Iterator[tuple[Desk, str]]:
    """Yield a finished run."""
    desk = Desk(folder)
    with tutor() as url:
        desk.write("questions.jsonl", *rows())
        (desk.folder / "my.toml").write_text(CONFIG.format(url=url))
        assert "to be made" not in desk.treadle("run", "my.toml", "--run", "r").succeeded().err
        assert num_requests(url) == TURNS * 2 * NUM + 2 * PREFLIGHT
        yield desk, url


def again(desk: Desk, url: str, *more: str) -> tuple[str, str, int]:
    """Return the rollout counts of the dry run, of the run, and of requests at the server."""
    pattern = re.compile(r"^1/rollouts@base: (\d+ of .*)$", re.MULTILINE)
    dry = desk.treadle("run", "my.toml", "--run", "r", "--dry-run", *more).succeeded().out
    before = num_requests(url)
    run = desk.treadle("run", "my.toml", "--run", "r", *more).succeeded().err
    told = [found[1] if (found := pattern.search(text)) else "" for text in (dry, run)]
    num_sent = num_requests(url) - before
    return told[0], told[1], (num_sent - PREFLIGHT) // TURNS if num_sent else 0


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Desk, str]]:
    with made(tmp_path_factory.mktemp("reuse")) as found:
        yield found


def test_edited_question_is_counted_and_announced_before_the_request(finished: tuple[Desk, str]) -> None:
    desk, url = finished
    desk.write("questions.jsonl", *rows(q3="How many legs have 3 spiders, 3 ants?"))
    dry, run, num_asked = again(desk, url)
    counts = "2 of 10 rollouts to be made, 8 reused; because: 1 question edited"
    assert dry == counts and re.fullmatch(rf"{counts}; about [\d,]+ tokens, [\d.e-]+", run)
    assert num_asked == 2, "as many as are said"
    desk.write("questions.jsonl", *rows(NUM + 2, q3="How many legs have 3 spiders, 3 ants?"))
    dry, run, num_asked = again(desk, url)
    assert dry == "4 of 14 rollouts to be made, 10 reused; because: 2 questions new" and run.startswith(dry)
    assert num_asked == 4
    dry, run, num_asked = again(desk, url, "--set", "rollouts.samples_per_question=4")
    assert dry == "14 of 28 rollouts to be made, 14 reused; because: 14 further samples" and num_asked == 14
    dry, run, num_asked = again(
        desk, url, "--set", "rollouts.max_questions=3", "--set", "rollouts.samples_per_question=4"
    )
    assert (dry, num_asked) == ("0 of 12 rollouts to be made, 12 reused", 0) and run == dry
    dry, run, num_asked = again(desk, url, "--set", "rollouts.samples_per_question=4")
    assert dry == "16 of 28 rollouts to be made, 12 reused; because: 4 questions not selected before"
    told = desk.treadle("run", "--run", "r", "--dry-run", "--force", "--json").succeeded().json()
    assert told["reuse"]["1/rollouts@base"] | {"noun": ""} == {
        "address": "1/rollouts@base", "noun": "", "num_jobs": 28, "num_finished": 0, "num_open": 28,
        "reasons": ["--force"],
    }  # fmt: skip
    assert told["estimates"][0]["num_units"] == 28


def test_edited_gold_answer_is_rescored_without_requests(tmp_path: Path) -> None:
    with made(tmp_path) as (desk, url):
        table = desk.rows("r", "1/rollouts@base", "rollouts")
        desk.write("questions.jsonl", *({**row, "answer": "7"} for row in rows()))
        dry, run, num_asked = again(desk, url)
        assert num_asked == 0 and dry == run == "0 of 10 rollouts to be made, 10 reused"
        texts = [row["text"] for row in desk.rows("r", "1/rollouts@base", "rollouts")]
        assert texts == [row["text"] for row in table]
        keys = {row["question_key"] for row in desk.rows("r", "1/questions", "questions")}
        assert {row["question_key"] for row in desk.rows("r", "1/scores@base", "scores")} == keys


def test_adding_a_model_sends_no_request_to_the_existing_one(tmp_path: Path) -> None:
    with made(tmp_path) as (desk, url), tutor() as other:
        before = num_requests(url)
        table = f'{{model="treadle-tutor", endpoints=[{{url="{other}"}}]}}'
        more = ("--set", f"models.other={table}", "--set", "rollouts.samples_per_question=2")
        desk.treadle("stage", "1/rollouts@other", "my.toml", "--run", "r", *more).succeeded()
        assert num_requests(url) == before and num_requests(other) == TURNS * 2 * NUM + PREFLIGHT


def test_work_paid_before_a_kill_is_reused_after_editing_questions(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    with tutor("--latency-s", "0.2") as url:
        desk.write("questions.jsonl", *rows(20))
        (desk.folder / "my.toml").write_text(CONFIG.format(url=url))
        slow = ("--set", "rollouts.max_concurrent=2")
        with desk.started("run", "my.toml", "--run", "r", *slow) as process:
            until(lambda: num_requests(url) >= 10, "some are asked")
            process.kill()
            process.wait()
        desk.write("questions.jsonl", *rows(20, q19="How many legs have 3 spiders, 3 ants?"), *rows(21)[20:])
        desk.treadle("run", "my.toml", "--run", "r").succeeded()
        # Question 19 had not been asked when it was edited.
        num_sent = num_requests(url) - 3 * PREFLIGHT
        assert num_sent - TURNS * 2 * 21 <= 2, "no more is asked twice than was in flight at the kill"
        assert len(desk.rows("r", "1/rollouts@base", "rollouts")) == 42
