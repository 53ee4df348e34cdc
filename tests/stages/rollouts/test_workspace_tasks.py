"""Tasks in a workspace as a user runs them: native calls, hidden tests, scores, a resume after a kill."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.qwen_tokenizer import qwen_tokenizer
from support.runs.command_line import Desk
from support.servers.scripted_server import RecordedRequest, Reply, served

from treadle.core.chat import ChatTokenizer

TOKENIZER = ChatTokenizer.load(qwen_tokenizer())
HIDDEN = "secret_of_the_tests"
CONFIG = """
[models.base]
model = "scripted"
tokenizer = "{tokenizer}"
endpoints = [{{ url = "{url}" }}]

[questions]
sources = [{{ path = "tasks.jsonl", dataset = "bugs", payload = ["files", "tests"], scorer = "workspace_tests" }}]

[environment]
dialect = "functions"
python.enabled = false
search.enabled = false

[environment.tools.workspace]
type = "workspace"
sandbox = {{ packages = ["pytest"] }}
"""
TASKS = [
    {
        "question": f"{how}: fix add in calc.py.",
        "files": {"calc.py": "def add(a, b):\n    return a - b\n"},
        "tests": {
            "files": {
                "test_calc.py": f"from calc import add\n{HIDDEN} = 5\ndef test_add():\n    assert add(2, 3) == 5\n"
            },
            "command": "python -m pytest -q",
        },
    }
    for how in ("Honestly", "Faking")
]
EDIT = {"path": "calc.py", "old_text": "a - b", "new_text": "a + b"}
FAKE = "echo 'import os; os._exit(0)' > calc.py; echo 'def test_add(): pass' > test_calc.py; cp calc.py pytest.py"
TURNS: dict[str, list[list[tuple[str, dict[str, Any]]]]] = {
    "Honestly": [
        [("read_file", {"path": "calc.py"}), ("shell", {"command": "ls"})],
        [("edit_file", EDIT)],
        [("shell", {"command": "python -c 'from calc import add; print(add(2, 3))'"})],
    ],
    "Faking": [[("shell", {"command": FAKE})]],
}


def _said(request: RecordedRequest) -> tuple[str, int, str] | None:
    """Return the task of a request, the number of its turn, and the model's text; None for a check of the server."""
    how = next((how for how in TURNS if f"{how}: fix" in request.text), None)
    if how is None:
        return None
    number = request.text.rpartition(f"{how}: fix")[2].count("<|im_start|>assistant") - 1
    if number >= len(TURNS[how]):
        return how, number, "It is done."
    calls = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in TURNS[how][number]]
    return how, number, "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


def _reply(request: RecordedRequest) -> Reply:
    said = _said(request)
    text = said[2] if said else "It is done."
    return Reply(text, (*TOKENIZER.encode(text), TOKENIZER.turn_end_ids[0]))


@pytest.fixture
def desk(tmp_path: Path) -> Callable[[str], Desk]:
    def made(url: str) -> Desk:
        found = Desk(tmp_path)
        found.write("tasks.jsonl", *TASKS)
        (tmp_path / "bugs.toml").write_text(CONFIG.format(tokenizer=qwen_tokenizer(), url=url))
        return found

    return made


def _scores(desk: Desk) -> dict[str, tuple[float, str]]:
    keys = {row["rollout_key"]: row["text"] for row in desk.rows("bugs", "1/rollouts@base", "rollouts")}
    rows = desk.rows("bugs", "1/scores@base", "scores")
    return {
        "Faking" if "os._exit" in keys[row["rollout_key"]] else "Honestly": (row["score"], row["scorer"])
        for row in rows
    }


def test_hidden_tests_score_the_workspace(desk: Callable[[str], Desk], tmp_path: Path) -> None:
    with served(_reply, codec=TOKENIZER) as server:
        run = desk(server.url)
        run.treadle("run", "bugs.toml", "--run", "bugs").succeeded()
    assert _scores(run) == {"Honestly": (1.0, "workspace_tests"), "Faking": (0.0, "workspace_tests")}
    rollouts = run.rows("bugs", "1/rollouts@base", "rollouts")
    honest = next(row for row in rollouts if "a + b" in row["text"])
    assert json.loads(honest["outcome"]) == {"reward": 1.0, "success": True, "parts": {"test_1": 1.0}}
    calls = [(call["tool"], call["status"]) for call in json.loads(honest["tool_calls"])]
    assert calls == [("read_file", "ok"), ("shell", "ok"), ("edit_file", "ok"), ("shell", "ok")]
    assert "calc.py\n[exit code 0]" in honest["text"] and "5\n[exit code 0]" in honest["text"]
    assert not any(HIDDEN in json.dumps(row, default=str) for row in rollouts)
    assert not any(HIDDEN in request.text for request in server.requests)


def test_killed_rollout_finds_its_workspace_again(desk: Callable[[str], Desk]) -> None:
    """The third turn runs what the second one wrote, in the process after the one that was killed."""
    asked: Counter[tuple[str, int]] = Counter()
    reached, killed = threading.Event(), threading.Event()

    def script(request: RecordedRequest) -> Reply:
        reply, said = _reply(request), _said(request)
        if said is not None:
            asked[said[:2]] += 1
            if said[:2] == ("Honestly", 2) and not killed.is_set():
                reached.set()
                return Reply(reply.text, reply.token_ids, delay_s=600)
        return reply

    with served(script, codec=TOKENIZER) as server:
        run = desk(server.url)
        with run.started("run", "bugs.toml", "--run", "bugs") as process:
            while not reached.wait(0.05):
                assert process.poll() is None
            killed.set()
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        run.treadle("run", "bugs.toml", "--run", "bugs").succeeded()
    assert _scores(run)["Honestly"] == (1.0, "workspace_tests")
    assert asked["Honestly", 0] == asked["Honestly", 1] == 1 and asked["Honestly", 2] == 2
    (honest,) = [row for row in run.rows("bugs", "1/rollouts@base", "rollouts") if "a + b" in row["text"]]
    assert "5\n[exit code 0]" in honest["text"]


def test_unusable_tests_go_to_quarantine_unquoted(desk: Callable[[str], Desk]) -> None:
    with served(_reply, codec=TOKENIZER) as server:
        run = desk(server.url)
        bad = TASKS[0] | {"tests": {"files": {f"../{HIDDEN}": ""}, "command": "true"}}
        run.write("tasks.jsonl", bad, *TASKS)
        run.treadle("run", "bugs.toml", "--run", "bugs", "--set", "questions.max_error_rate=0.5").succeeded()
    (row,) = [row for row in run.rows("bugs", "1/questions", "quarantine") if row["reason"] == "bad_payload"]
    assert row["detail"] == "the payload cannot be used: path 1 of tests.files has an empty part, . or .."
    assert HIDDEN not in json.dumps(row, default=str)
