"""The guide's environment as a user runs it: dialogues, scores, report; nothing is asked twice after kills."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections import Counter
from pathlib import Path

import pytest
from support.rollouts.guess_desk import TOKENIZER, desk_of_the_guide, guess
from support.runs.command_line import Desk
from support.servers.scripted_server import RecordedRequest, Reply, served

NUM_KILLS = int(os.environ.get("TREADLE_KILL_POINTS", "2"))


def test_guide_runs_as_written(tmp_path: Path) -> None:
    with served(guess, codec=TOKENIZER) as server:
        desk = desk_of_the_guide(tmp_path / "desk", server.url)
        plan = desk.treadle("run", "guess.toml", "--run", "guess", "--dry-run").succeeded()
        assert "1/rollouts@base" in plan.out and "top = 64  Largest number." in plan.out
        done = desk.treadle("run", "guess.toml", "--run", "guess").succeeded()
    rollouts = desk.rows("guess", "1/rollouts@base", "rollouts")
    scores = desk.rows("guess", "1/scores@base", "scores")
    assert len(rollouts) == 3, "tasks with one text and different payloads are different tasks"
    assert {row["status"] for row in rollouts} == {"finished"} and not any(row["truncated"] for row in rollouts)
    assert [row["reward"] for row in rollouts] == [1.0] * 3
    expected = [1.0 - 0.1 * (len(row["turn_rewards"]) - 1) for row in rollouts]
    assert [row["score"] for row in scores] == pytest.approx(expected) and {row["scorer"] for row in scores} == {
        "environment"
    }
    assert "guess" in done.out
    for row in rollouts:
        (sample,) = row["samples"]
        assert TOKENIZER.decode(sample["ids"]) == row["text"]
        assert {span["role"] for span in sample["spans"]} == {"assistant", "frame", "user"}
        assert len(sample["turn_starts"]) == row["num_turns"] == len(row["turn_rewards"])
    shown = desk.treadle("show", rollouts[0]["rollout_key"], "--run", "guess").succeeded()
    assert "Higher." in shown.out or "Lower." in shown.out


def test_killed_dialogues_ask_no_model_answer_twice(tmp_path: Path) -> None:
    """A kill loses at most the requests that were in flight; what was journaled never reaches the server again."""
    seen: list[tuple[str, int]] = []
    lock, reached = threading.Lock(), threading.Event()
    limit = 0

    def script(request: RecordedRequest) -> Reply:
        if "I think of a number" not in request.text:  # a check of the server
            return guess(request)
        with lock:
            seen.append((request.text, request.body["seed"]))
            if len(seen) >= limit:
                reached.set()
        return guess(request)

    with served(script, codec=TOKENIZER) as server:
        desk = desk_of_the_guide(tmp_path / "desk", server.url, num_tasks=12)
        for kill in range(NUM_KILLS):
            with lock:
                limit = len(seen) + 5 + 3 * (kill % 4)
                reached.clear()
            with desk.started("run", "guess.toml", "--run", "guess", "--set", "rollouts.max_concurrent=2") as process:
                while not reached.wait(0.05) and process.poll() is None:
                    pass
                if process.poll() is None:
                    os.kill(process.pid, signal.SIGKILL)
                process.wait()
        desk.treadle("run", "guess.toml", "--run", "guess").succeeded()
        again = sum(count - 1 for count in Counter(seen).values())
        shutil.copytree(desk.folder, tmp_path / "other", ignore=shutil.ignore_patterns("outputs"))
        whole = Desk(tmp_path / "other")
        whole.treadle("run", "guess.toml", "--run", "guess").succeeded()
    assert again <= 2 * NUM_KILLS, "more requests were served twice than were in flight at the kills"
    kinds = ("1/rollouts@base", "rollouts")
    assert desk.rows("guess", *kinds) == whole.rows("guess", *kinds)


def test_operators_that_edit_and_judges_are_refused_before_the_run(tmp_path: Path) -> None:
    with served(guess, codec=TOKENIZER) as server:
        desk = desk_of_the_guide(tmp_path / "desk", server.url)
        told = desk.treadle("run", "guess.toml", "--run", "guess", "--set", 'flow.stages=["pools"]')
        assert told.code == 2 and "pools" in told.err and "Guess" in told.err and not server.requests
        for key, value in (("scores.judges.models", '["base"]'), ("scores.redundancy.model", '"base"')):
            told = desk.treadle("run", "guess.toml", "--run", "guess", "--set", f"{key}={value}")
            assert told.failed("gold answers", "Guess", f"leave out {key}", code=2) and not server.requests


def test_unknown_type_lists_what_there_is(tmp_path: Path) -> None:
    desk = desk_of_the_guide(tmp_path / "desk", "http://127.0.0.1:9/v1")
    told = desk.treadle("run", "guess.toml", "--run", "guess", "--set", "environment.type=gues")
    assert told.code == 2 and "question" in told.err and "my_envs.py:Class" in told.err
    misspelt = desk.treadle("run", "guess.toml", "--run", "guess", "--set", "environment.topp=3")
    assert misspelt.code == 2 and "did you mean 'top'" in misspelt.err


def test_edited_file_is_another_environment(tmp_path: Path) -> None:
    with served(guess, codec=TOKENIZER) as server:
        desk = desk_of_the_guide(tmp_path / "desk", server.url)
        desk.treadle("run", "guess.toml", "--run", "guess").succeeded()
        source = desk.folder / "my_envs.py"
        source.write_text(source.read_text().replace("Higher.", "Higher!"))
        told = desk.treadle("run", "guess.toml", "--run", "guess")
    assert told.code != 0 and "environment.code_sha256" in told.err


def test_error_of_an_environment_leaves_its_rollout_pending(tmp_path: Path) -> None:
    with served(guess, codec=TOKENIZER) as server:
        desk = desk_of_the_guide(tmp_path / "desk", server.url)
        source = desk.folder / "my_envs.py"
        source.write_text(source.read_text().replace("guess == self.secret", "guess == self.sekret"))
        told = desk.treadle("run", "guess.toml", "--run", "guess", "--set", "rollouts.pending_retries=0")
    assert told.code == 1 and "sekret" in told.err and "Traceback" not in told.err.splitlines()[-1]
