"""The guide's environment as a user runs it: dialogues, scores, report; nothing is asked twice after kills."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.rollouts.guess_desk import TOKENIZER, desk_of_the_guide, guess
from support.runs.command_line import Desk, Done
from support.servers.scripted_server import RecordedRequest, Reply, served

NUM_KILLS = int(os.environ.get("TREADLE_KILL_POINTS", "1"))


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


def test_a_rubric_grades_episodes_that_have_no_gold_answers(tmp_path: Path) -> None:
    graded: list[str] = []

    def script(request: RecordedRequest) -> Reply:
        if "Grade this by the rubric" not in request.text:
            return guess(request)
        graded.append(request.text)
        return Reply("<grade>0.75</grade>")

    with served(script, codec=TOKENIZER) as server:
        desk = desk_of_the_guide(tmp_path / "desk", server.url)
        (desk.folder / "rubric.txt").write_text("Halve the range with every guess.")
        judged = 'scores.judges={type="rubric", rubric="rubric.txt", subject="trajectory", models=["base"]}'
        desk.treadle("run", "guess.toml", "--run", "guess", "--set", judged).succeeded()
        rows = desk.rows("guess", "1/scores@base", "scores")
        strict = judged.replace("models", "threshold=0.9, models")
        desk.treadle("run", "guess.toml", "--run", "guess", "--set", strict).succeeded()
    assert {(row["score"], row["scorer"], row["correct"]) for row in rows} == {(0.75, "judge", True)}
    assert graded and all("Halve the range" in text and "<gold_" not in text for text in graded)
    assert len(graded) == len({text for text in graded}), "another threshold asked again"
    summary = {row["figure"]: row["value"] for row in desk.rows("guess", "1/report", "summary")}
    assert summary["judge:rubric"] == 0.75
    assert not any(row["correct"] for row in desk.rows("guess", "1/scores@base", "scores"))


def test_unknown_type_lists_what_there_is(tmp_path: Path) -> None:
    desk = desk_of_the_guide(tmp_path / "desk", "http://127.0.0.1:9/v1")
    told = desk.treadle("run", "guess.toml", "--run", "guess", "--set", "environment.type=gues")
    assert told.code == 2 and "question" in told.err and "my_envs.py:Gues" in told.err
    misspelt = desk.treadle("run", "guess.toml", "--run", "guess", "--set", "environment.topp=3")
    assert misspelt.code == 2 and "did you mean 'top'" in misspelt.err


def test_edited_file_is_another_environment(tmp_path: Path) -> None:
    with served(guess, codec=TOKENIZER) as server:
        desk = desk_of_the_guide(tmp_path / "desk", server.url)
        desk.treadle("run", "guess.toml", "--run", "guess").succeeded()
        source = desk.folder / "my_envs.py"
        source.write_text(source.read_text().replace("Higher.", "Higher!"))
        told = desk.treadle("run", "guess.toml", "--run", "guess")
    assert told.code != 0 and "the code of environment was edited since run" in told.err


def test_error_of_an_environment_leaves_its_rollout_pending(tmp_path: Path) -> None:
    with served(guess, codec=TOKENIZER) as server:
        desk = desk_of_the_guide(tmp_path / "desk", server.url)
        source = desk.folder / "my_envs.py"
        source.write_text(source.read_text().replace("guess == self.secret", "guess == self.sekret"))
        told = desk.treadle("run", "guess.toml", "--run", "guess", "--set", "rollouts.pending_retries=0")
    assert told.code == 1 and "sekret" in told.err and "Traceback" not in told.err.splitlines()[-1]


def test_prints_of_an_environment_do_not_disturb_json(tmp_path: Path) -> None:
    with served(guess, codec=TOKENIZER) as server:
        desk = desk_of_the_guide(tmp_path / "desk", server.url)
        source = desk.folder / "my_envs.py"
        source.write_text(source.read_text().replace("guess = int", 'print("a number"); guess = int'))
        told = desk.treadle("run", "guess.toml", "--run", "guess", "--json").succeeded()
    assert [record["address"] for record in json.loads(told.out)] and "a number" in told.err


CANARY = "canary-41c9d0"
TRAINED = ("--set", 'flow.stages=["rollouts","scores","sft_rows"]')


@pytest.fixture(scope="module")
def trained_on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Desk, Done]]:
    """Yield a desk whose run `guess` has rows of its rollouts, by its type alone, and how it ended."""
    with served(guess, codec=TOKENIZER) as server:
        desk = desk_of_the_guide(tmp_path_factory.mktemp("rows") / "desk", server.url)
        config = (desk.folder / "guess.toml").read_text()
        config = config.replace('payload = ["secret"]', 'payload = ["secret", "note"], split_field = "split"')
        (desk.folder / "guess.toml").write_text(config)
        secrets = (32, 40, 62, 8, 63)  # 63 takes 6 turns by halving, whose reward is no success
        task = {"question": "Guess my number.", "note": CANARY, "split": "train"}
        rows = [{**task, "secret": number} for number in secrets]
        held_out = {**task, "question": "Guess it.", "secret": 48, "split": "test"}
        desk.write("tasks.jsonl", *rows, held_out)
        plan = desk.treadle("run", "guess.toml", "--run", "guess", "--dry-run", *TRAINED).succeeded()
        assert plan.out.index("1/scores@base") < plan.out.index("1/sft_rows")
        yield desk, desk.treadle("run", "guess.toml", "--run", "guess", *TRAINED).succeeded()


def test_successful_dialogues_become_rows_by_type_alone(trained_on: tuple[Desk, Done]) -> None:
    desk, _ = trained_on
    rollouts = {row["rollout_key"]: row for row in desk.rows("guess", "1/rollouts@base", "rollouts")}
    scores = {row["rollout_key"]: row for row in desk.rows("guess", "1/scores@base", "scores")}
    rows = {row["rollout_key"]: row for row in desk.rows("guess", "1/sft_rows", "sft_rows")}
    rejections = {row["rollout_key"]: row["reasons"] for row in desk.rows("guess", "1/sft_rows", "sft_rejections")}
    assert len(rollouts) == 6 and rows.keys() | rejections.keys() == rollouts.keys()
    assert sorted(rejections.values()) == [["held_out"], ["wrong_answer"]]
    assert all(scores[key]["correct"] for key in rows)
    for key, row in rows.items():
        (sample,) = rollouts[key]["samples"]
        said = [segment["text"] for segment in json.loads(rollouts[key]["segments"]) if segment["kind"] == "text"]
        messages = json.loads(row["messages"])
        assert messages[0]["content"].startswith("I think of a number from 1 to 64.")
        assert [one["content"] for one in messages if one["role"] == "assistant"] == said
        labels = [label for label in row["labels"] if label != -100]
        assert TOKENIZER.decode(labels) == "".join(f"{text}<|im_end|>" for text in said)
        kept = row["input_ids"][row["num_prompt_tokens"] :]
        assert kept == sample["ids"][: len(kept)] and row["input_ids"][-1] in TOKENIZER.eos_ids


def test_commands_know_the_rows_of_rollouts(trained_on: tuple[Desk, Done]) -> None:
    desk, _ = trained_on
    again = desk.treadle("run", "guess.toml", "--run", "guess", "--dry-run", "--json", *TRAINED).succeeded()
    assert set(again.json()["plan"].values()) == {"reuse"}
    (row, *_) = desk.rows("guess", "1/sft_rows", "sft_rows")
    (rejection, *_) = desk.rows("guess", "1/sft_rows", "sft_rejections")
    told = desk.treadle("lineage", row["rollout_key"], "--run", "guess").succeeded().out
    assert "fine-tuning row of 1/sft_rows" in told
    told = desk.treadle("lineage", rejection["rollout_key"], "--run", "guess").succeeded().out
    assert f"no fine-tuning row of 1/sft_rows: {rejection['reasons'][0]}" in told
    assert "1/sft_rows" in desk.treadle("status", "--run", "guess").succeeded().out
    desk.treadle("stage", "1/sft_rows", "--run", "guess", "--force").succeeded()
    told = desk.treadle(
        "run", "guess.toml", "--run", "b", "--set", "sft_rows.trajectories=pools", *TRAINED, "--dry-run"
    )
    assert told.code == 2 and "sft_rows.trajectories = pools" in told.err and "no gold answers" in told.err


def test_payload_is_in_no_row_and_no_export(trained_on: tuple[Desk, Done]) -> None:
    desk, done = trained_on
    assert CANARY not in done.out + done.err
    for name in ("sharegpt", "alpaca", "openai", "hf"):
        desk.treadle("export", "sft_rows", "--run", "guess", "--format", name, "--out", f"out/{name}").succeeded()
    desk.treadle("export", "dataset", "sft_rows", "--run", "guess", "--out", "out/rows").succeeded()
    places = [path for path in desk.folder.rglob("*") if path.is_file() and path.name != "tasks.jsonl"]
    tables = {path: pq.ParquetFile(path).read() for path in places if path.suffix == ".parquet"}
    holders = {
        (path.parents[2].name, name)
        for path, table in tables.items()
        for name in table.column_names
        if CANARY in repr(table[name].to_pylist())
    }
    assert holders == {("questions", "payload")}
    assert not [path for path in places if path not in tables and CANARY.encode() in path.read_bytes()]
    exported = [json.loads(line) for line in (desk.folder / "out/sharegpt/sharegpt.jsonl").read_text().splitlines()]
    assert {turn["from"] for row in exported for turn in row["conversations"]} == {"human", "gpt"}
    assert max(len(row["conversations"]) for row in exported) > 2
