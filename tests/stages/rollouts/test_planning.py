"""Planning agents as a user runs them: parallel searches of a real run, kills in the middle, a frozen search."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import threading
from collections import Counter
from pathlib import Path

from support.qwen_tokenizer import qwen_tokenizer
from support.runs.command_line import Desk
from support.servers.counting_search import CountingSearch, serving
from support.servers.scripted_server import RecordedRequest, Reply, served

from treadle.core.chat import ChatTokenizer

NUM_KILLS = int(os.environ.get("TREADLE_KILL_POINTS", "1"))
TOKENIZER = ChatTokenizer.load(qwen_tokenizer())
NUM_QUESTIONS = 8
ALIVE = "1/rollouts@base", "rollouts"


def planner(request: RecordedRequest) -> Reply:
    """Plan, search twice at once, then once for what both give, and answer with the last result."""
    (name,) = re.findall(r"Question: Which value has (\w+)\?", request.text)[-1:] or [""]
    said = request.text.rpartition("assistant\n")[2]
    found = re.findall(r"The value of ([\w ]+) is (\d+)", said)
    if not found:
        text = (
            f"<think>two look-ups</think><plan>\nT1: {name} left\n- Dependencies: none\nT2: {name} right\n"
            f"- Dependencies: none\nT3: {name} both\n- Dependencies: T1, T2\n</plan>"
            f"<wiki_search>T1: {name} left | T2: {name} right</wiki_search>\n"
        )
    elif len(found) == 2:
        text = f"<think>both</think><wiki_search>T3: {name} both</wiki_search>\n"
    else:
        text = f"<think>done</think><answer>{found[-1][1]}</answer>"
    return Reply(text, (*TOKENIZER.encode(text), TOKENIZER.turn_end_ids[0]))


def desk_of(folder: Path, model: str, search: str) -> Desk:
    folder.mkdir()
    desk = Desk(folder)
    names = [f"thing{number}" for number in range(NUM_QUESTIONS)]
    desk.write(
        "questions.jsonl",
        *({"question": f"Which value has {name}?", "answer": str(len(f"{name} both"))} for name in names),
    )
    (folder / "plan.toml").write_text(
        f"""
[flow]
stages = ["rollouts", "scores", "report"]
models = ["base"]

[models.base]
model = "scripted"
tokenizer = "{qwen_tokenizer()}"
endpoints = [{{ url = "{model}" }}]

[questions]
sources = [{{ path = "questions.jsonl", domain = "qa", split = "heldout" }}]

[rollouts]
samples_per_question = 1
split = "heldout"

[environment]
type = "planning"

[environment.search.service]
endpoints = [{{ url = "{search}" }}]
request_timeout_s = 60.0
connect_timeout_s = 30.0
retry_limit = 0
"""
    )
    return desk


def test_parallel_searches_are_rolled_out_scored_and_reported(tmp_path: Path) -> None:
    with served(planner, codec=TOKENIZER) as server, serving(CountingSearch()) as search:
        desk = desk_of(tmp_path / "desk", server.url, search.url)
        desk.treadle("run", "plan.toml", "--run", "plan").succeeded()
        rows = desk.rows("plan", *ALIVE)
        scores = desk.rows("plan", "1/scores@base", "scores")
        shown = desk.treadle("show", rows[0]["rollout_key"], "--run", "plan").succeeded()
    assert {row["status"] for row in rows} == {"answered"} and all(row["correct"] for row in scores)
    assert {row["num_turns"] for row in rows} == {3} and len(search.asked) == 3 * NUM_QUESTIONS
    for row in rows:
        (sample,) = row["samples"]
        assert TOKENIZER.decode(sample["ids"]) == row["text"]
        ids = [call["id"] for call in json.loads(row["tool_calls"])]
        assert ids == ["t0.call_wiki_search_0_0", "t0.call_wiki_search_0_1", "t1.call_wiki_search_0_0"]
        assert "[t0.call_wiki_search_0_1, task T2]\nDoc 1 (Title: thing" in row["text"]
    parts = {part["name"]: part["value"] for part in scores[0]["parts"]}
    assert (parts["steps"], parts["max_batch_width"], parts["plan_tasks"], parts["early_calls"]) == (2, 2, 3, 0)
    assert "wiki_search" in shown.out


def test_killed_rollouts_repeat_no_search_that_was_kept(tmp_path: Path) -> None:
    """A kill loses at most the calls that were in flight, and the rows are those of an undisturbed run."""
    reached, seen = threading.Event(), threading.Lock()
    count = limit = 0

    def on_query() -> None:
        nonlocal count
        with seen:
            count += 1
            if count >= limit:
                reached.set()

    with served(planner, codec=TOKENIZER) as server, serving(CountingSearch()) as search:
        search.on_query = on_query
        desk = desk_of(tmp_path / "desk", server.url, search.url)
        run = ("run", "plan.toml", "--run", "plan", "--set", "rollouts.max_concurrent=2")
        for kill in range(NUM_KILLS):
            with seen:
                limit = count + 2 + kill % 5
                reached.clear()
            with desk.started(*run) as process:
                while not reached.wait(0.05) and process.poll() is None:
                    pass
                if process.poll() is None:
                    os.kill(process.pid, signal.SIGKILL)
                process.wait()
        desk.treadle(*run).succeeded()
        again = sum(times - 1 for times in Counter(search.asked).values())
        shutil.copytree(desk.folder, tmp_path / "other", ignore=shutil.ignore_patterns("outputs"))
        whole = Desk(tmp_path / "other")
        whole.treadle(*run).succeeded()
    assert again <= 4 * NUM_KILLS, "more searches were made twice than were in flight at the kills"
    assert desk.rows("plan", *ALIVE) == whole.rows("plan", *ALIVE)


def test_a_frozen_search_leaves_its_rollout_pending_and_the_calls_beside_it_are_kept(tmp_path: Path) -> None:
    with served(planner, codec=TOKENIZER) as server, serving(CountingSearch()) as search:
        search.held = {"thing0 left"}
        desk = desk_of(tmp_path / "desk", server.url, search.url)
        soon = [f"environment.search.service.{key}=1.0" for key in ("request_timeout_s", "connect_timeout_s")]
        keys = [word for key in ("rollouts.pending_retries=0", *soon) for word in ("--set", key)]
        told = desk.treadle("run", "plan.toml", "--run", "plan", *keys)
        assert told.code != 0 and "Traceback" not in told.err
        first = Counter(search.asked)
        assert first["thing0 right"] == 1 and first["thing0 both"] == 0
        search.held = set()
        desk.treadle("run", "plan.toml", "--run", "plan").succeeded()
        rows = desk.rows("plan", *ALIVE)
    again = Counter(search.asked)
    assert again["thing0 right"] == 1 and again["thing0 left"] > first["thing0 left"]
    assert {row["status"] for row in rows} == {"answered"}


NUM_STEPS = 8
WINDOW = 420


def wanderer(request: RecordedRequest) -> Reply:
    """Search once per turn, which the last visible result tells, and answer with what the last one says."""
    (name,) = re.findall(r"Question: Which value has (\w+)\?", request.text)[-1:] or [""]
    turns = [int(turn) for turn in re.findall(r"\[t(\d+)\.call_wiki_search", request.text)]
    step = max(turns, default=-1) + 1
    text = f"<think>step {step}</think><wiki_search>{name} step {step}</wiki_search>\n"
    if not turns:
        text = f"<think>first</think><plan>look up all {NUM_STEPS} steps of {name}</plan>{text}"
    if step == NUM_STEPS:
        text = f"<think>done</think><answer>{re.findall(r'is ([0-9]+)', request.text)[-1]}</answer>"
    return Reply(text, (*TOKENIZER.encode(text), TOKENIZER.turn_end_ids[0]))


def test_a_killed_rollout_with_trimmed_contexts_goes_on_with_the_same_prompts(tmp_path: Path) -> None:
    """Every turn was sampled behind the prompt of its sample, also if the rollout was killed between two trims."""
    reached = threading.Event()
    trimmed = ("environment.trim_reserve_tokens=100", 'environment.instructions=""', "environment.max_turns=12",
               "rollouts.max_questions=2")  # fmt: skip
    keys = [word for key in trimmed for word in ("--set", key)]
    with served(wanderer, codec=TOKENIZER, max_model_len=WINDOW) as server, serving(CountingSearch()) as search:
        search.on_query = lambda: reached.set() if len(search.asked) >= 2 * (NUM_STEPS - 2) else None
        desk = desk_of(tmp_path / "desk", server.url, search.url)
        run = ("run", "plan.toml", "--run", "plan", *keys)
        with desk.started(*run) as process:
            while not reached.wait(0.05) and process.poll() is None:
                pass
            assert process.poll() is None
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        before = len(server.requests)
        desk.treadle(*run).succeeded()
        rows = desk.rows("plan", *ALIVE)
        assert 0 < before < len(server.requests)
        shown = desk.treadle("show", rows[0]["rollout_key"], "--run", "plan").succeeded()
        saw = [request.prompt for request in server.requests]
        shutil.copytree(desk.folder, tmp_path / "other", ignore=shutil.ignore_patterns("outputs"))
        whole = Desk(tmp_path / "other")
        whole.treadle(*run).succeeded()
    assert rows == whole.rows("plan", *ALIVE)
    assert shown.out.count("context trimmed") == len(rows[0]["samples"]) - 1
    for row in rows:
        assert row["status"] == "answered" and len(row["samples"]) > 2 and row["num_turns"] == NUM_STEPS + 1
        assert row["text"] == "".join(TOKENIZER.decode(sample["ids"]) for sample in row["samples"])
        for sample in row["samples"]:
            for start in sample["turn_starts"]:
                assert [*sample["prompt_ids"], *sample["ids"][:start]] in saw
