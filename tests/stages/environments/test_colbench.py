"""The guide to ColBench as a user follows it: dialogues with a person, hidden tests, kills, and imported dialogues."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.docs_pages import FILE, ROOT, blocks
from support.qwen_tokenizer import qwen_tokenizer
from support.runs.command_line import Desk
from support.servers.scripted_server import RecordedRequest, Reply, served
from support.tables.viewer_run import client

from treadle.core.chat import ChatTokenizer
from treadle.core.runs.run import Run

GUIDE = ROOT / "docs/guides/colbench.md"
TOKENIZER = ChatTokenizer.load(qwen_tokenizer())
CANARY = "canary_of_the_reference"
NUM_TASKS = 5
TASKS = [
    {
        "problem_description": f"Write scale(x), which I use for job {number}.",
        "ground_truth": f"def scale(x):\n    return x * {number}  # {CANARY}",
        "test_cases": {"one": "scale(2)", "two": "scale(0)"},
        "page": number,
    }
    for number in range(1, NUM_TASKS + 1)
]
PERSON = "Play a person who asks an assistant"


def is_of_person(request: RecordedRequest) -> bool:
    return PERSON in request.text


def is_asked(request: RecordedRequest) -> bool:
    """Whether a request is of a dialogue, not a check of the server."""
    return "Write scale(x)" in request.text


def play(request: RecordedRequest) -> Reply:
    """Ask for the factor and use it; the person names it, without code."""
    number = request.text.partition("for job ")[2].partition(".")[0]
    if is_of_person(request):
        said = f"By {number}."
    elif "By " in request.text:
        factor = request.text.rpartition("By ")[2].partition(".")[0]
        said = f"I WANT TO ANSWER:\n```python\ndef scale(x):\n    return x * {factor} + (x == 0) * ({number} % 2)\n```"
    else:
        said = "I should ask. OUTPUT: By which factor?"
    return Reply(said, (*TOKENIZER.encode(said), TOKENIZER.turn_end_ids[0]))


def desk_of_the_guide(folder: Path, url: str) -> Desk:
    folder.mkdir(exist_ok=True)
    desk = Desk(folder)
    (config,) = [block.text for block in blocks(GUIDE) if block.remark == f"{FILE}dialogues.toml"]
    tokenizer = f'tokenizer = "{qwen_tokenizer()}"\n\n[models.human]'
    config = config.replace("http://127.0.0.1:8000/v1", url).replace("http://127.0.0.1:8001/v1", url)
    config = config.replace("[models.human]", tokenizer, 1).replace("your-model", "scripted")
    config = config.replace("larger-model", "scripted").replace(
        "[environment]", f'tokenizer = "{qwen_tokenizer()}"\n\n[environment]'
    )
    config = config.replace("samples_per_question = 3", "samples_per_question = 3\nmax_concurrent = 2")
    (folder / "dialogues.toml").write_text(config)
    desk.write("test.jsonl", *TASKS)
    desk.treadle("import", "colbench", "tasks", "test.jsonl", "--out", "tasks", "--split", "heldout").succeeded()
    return desk


RUN = ("run", "dialogues.toml", "tasks/questions.toml", "--run", "dialogues")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Desk, list[RecordedRequest]]]:
    """Yield the finished run of the guide, and what its models were asked."""
    with served(play, codec=TOKENIZER) as server:
        desk = desk_of_the_guide(tmp_path_factory.mktemp("desk"), server.url)
        done = desk.treadle(*RUN).succeeded()
        assert CANARY not in done.out + done.err
        yield desk, [one for one in server.requests if is_asked(one)]


def test_dialogues_are_scored_by_hidden_tests(ran: tuple[Desk, list[RecordedRequest]]) -> None:
    desk, _ = ran
    rows = desk.rows("dialogues", "1/rollouts@base", "rollouts")
    assert len(rows) == 3 * NUM_TASKS and {(row["status"], row["num_turns"]) for row in rows} == {("answered", 2)}
    kinds = [one["kind"] for one in json.loads(rows[0]["segments"]) if one["kind"] != "frame"]
    assert kinds == ["private", "text", "user", "answer"]
    scores = desk.rows("dialogues", "1/scores@base", "scores")
    assert {row["scorer"] for row in scores} == {"programs"}
    # Answers of odd jobs are wrong for 0.
    assert Counter(row["score"] for row in scores) == {0.5: 9, 1.0: 6}
    assert all((row["score"] == 1) == row["correct"] for row in scores)
    tests = json.loads(next(row["detail"] for row in scores if row["score"] == 0.5))
    assert [(one["name"], one["passed"], one["expected"], one["got"]) for one in tests] == [
        ("one", True, tests[0]["got"], tests[0]["got"]),
        ("two", False, "0", "1"),
    ]
    for row in rows:
        (sample,) = row["samples"]
        own = [one for one, origin in zip(sample["ids"], sample["origins"], strict=True) if origin]
        assert TOKENIZER.decode(own).count("<|im_end|>") == 2, "the ends of both turns are the model's"


def holders(folder: Path) -> set[str]:
    """Files below that hold the canary; columns of parquet by their names."""
    found = set()
    for path in (path for path in folder.rglob("*") if path.is_file()):
        name = str(path.relative_to(folder))
        if path.suffix == ".parquet":
            table = pq.read_table(path, use_threads=False)
            found |= {column for column in table.column_names if CANARY in repr(table[column].to_pylist())}
        elif CANARY.encode() in path.read_bytes():
            found.add(name)
    return found


@pytest.mark.covers("sweet-6")
def test_reference_reaches_person_and_scorer_and_nothing_else(ran: tuple[Desk, list[RecordedRequest]]) -> None:
    desk, requests = ran
    assert {CANARY in one.text for one in requests if is_of_person(one)} == {True}
    assert {CANARY in one.text for one in requests if not is_of_person(one)} == {False}
    assert holders(desk.folder) == {"test.jsonl", "tasks/tasks.jsonl", "payload"}
    viewer = client(Run.open(desk.folder / "outputs", "dialogues"))
    rollout = desk.rows("dialogues", "1/rollouts@base", "rollouts")[0]["rollout_key"]
    place = f"1/rollouts@base/{rollout}"
    for path in ("/", f"/trajectory/{place}", f"/lineage/{place}", f"/json/{place}", f"/text/{place}?place=0"):
        answer = viewer.get(path)
        assert answer.status_code == 200 and CANARY not in answer.text, path
    shown = viewer.get(f"/trajectory/{place}").text
    assert f"/hidden/{place}" in shown and "of 2 tests passed" in shown and "I should ask." in shown
    hidden = viewer.get(f"/hidden/{place}")
    assert hidden.status_code == 200 and CANARY in hidden.text and "scale(2)" in hidden.text
    assert "By which factor?" in hidden.text and "I should ask." not in hidden.text
    for arguments in (("show", rollout), ("show", rollout, "--json"), ("lineage", rollout)):
        told = desk.treadle(*arguments, "--run", "dialogues").succeeded()
        assert CANARY not in told.out + told.err


@pytest.mark.covers("sweet-7")
def test_killed_run_ends_with_the_rows_of_an_uninterrupted_one(
    ran: tuple[Desk, list[RecordedRequest]], tmp_path: Path
) -> None:
    lock, reached = threading.Lock(), threading.Event()
    seen: Counter[tuple[str, int]] = Counter()

    def script(request: RecordedRequest) -> Reply:
        if is_asked(request):
            with lock:
                seen[request.text, request.body["seed"]] += 1
                if seen.total() >= 18:
                    reached.set()
        return play(request)

    with served(script, codec=TOKENIZER) as server:
        desk = desk_of_the_guide(tmp_path / "desk", server.url)
        with desk.started(*RUN) as process:
            while not reached.wait(0.05) and process.poll() is None:
                pass
            assert process.poll() is None, "the run ended before it was killed"
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        desk.treadle(*RUN).succeeded()
    assert seen.total() - len(seen) <= 2, "only what was in flight is asked again"
    kinds = ("1/rollouts@base", "rollouts")
    assert desk.rows("dialogues", *kinds) == ran[0].rows("dialogues", *kinds)


def offline(place: int, task: dict[str, Any]) -> dict[str, Any]:
    """Return a dialogue as the published program stores it; its reward is wrong on purpose."""
    code = f"def scale(x):\n    return x * {task['page'] if place < NUM_TASKS else 1}"
    return {
        "task": task,
        "dialogue_history": [
            {"role": "user", "content": task["problem_description"]},
            {"role": "assistant", "content": " Factor?", "input": "…", "output": "hm OUTPUT: Factor?"},
            {"role": "user", "content": "I say."},
            {
                "role": "assistant",
                "content": f"I WANT TO ANSWER:\n{code}",
                "input": "…",
                "output": f"I WANT TO ANSWER:\n{code}",
            },
        ],
        "answer": f"\n{code}",
        "reward": 0.3,
    }


def test_imported_dialogues_are_scored_and_masked(tmp_path: Path) -> None:
    desk = desk_of_the_guide(tmp_path / "desk", "http://127.0.0.1:9/v1")
    rows = [offline(place, TASKS[place % NUM_TASKS]) for place in range(2 * NUM_TASKS)]
    desk.write("offline.jsonl", *rows, {"task": {}}, {**rows[0], "dialogue_history": []})
    command = (
        "import", "colbench", "trajectories", "offline.jsonl", "dialogues.toml", "--run", "offline", "--instance",
        "1/rollouts@base",
    )  # fmt: skip
    desk.treadle(*command, "--out", "offline-tasks", "--samples", "2").failed(
        "row 7: its problem_description differs", code=2
    )
    told = desk.treadle(*command, "--out", "offline-tasks").succeeded()
    assert "10 dialogues about 5 tasks" in told.out and "1 left out: bad dialogue; the first is row 12" in told.err
    assert CANARY not in told.out + told.err
    resumed = tuple(word for word in command if word != "dialogues.toml")
    again = desk.treadle(*resumed, "--json").succeeded().json()
    assert (again["reused"], again["left_out"]) == (True, {})
    made = desk.rows("offline", "1/rollouts@base", "rollouts")
    assert [row["sample_index"] for row in made] == [0, 1] * NUM_TASKS
    assert {(row["status"], row["operator"], row["num_turns"]) for row in made} == {("answered", "imported", 2)}
    for row in made:
        (sample,) = row["samples"]
        own = [one for one, origin in zip(sample["ids"], sample["origins"], strict=True) if origin]
        first, second, rest = TOKENIZER.decode(own).split("<|im_end|>")
        assert first == " Factor?" and second.startswith("I WANT TO ANSWER:\ndef scale") and not rest
    desk.treadle("stage", "1/scores@base", "--run", "offline").succeeded()
    scores = desk.rows("offline", "1/scores@base", "scores")
    assert [row["score"] for row in scores] == [1, 1] + [1, 0.5] * (NUM_TASKS - 1)
    other = ("offline-tasks/questions.toml", "--run", "other", "--instance", "1/rollouts@base")
    asked = ("--set", "environment={type='question', search={enabled=false}}")
    desk.treadle(*command[:5], *other, *asked).failed('need environment.type = "colbench/backend"')
