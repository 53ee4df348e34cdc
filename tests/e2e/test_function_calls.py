"""Function-calling tasks of `bfcl-eval`: gold calls are sent, parsed, run and ledgered as the package sees them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.bfcl import conversations
from support.bfcl.conversations import json_schema
from support.bfcl.installed import ask_package, bfcl_folder
from support.runs.command_line import Desk
from support.servers.scripted_server import RecordedRequest, Reply, served

from treadle.agent.contract import Call
from treadle.agent.dialects.functions import FunctionsDialect

CONFIG = """
flow.stages = ["rollouts"]

[models.agent]
model = "scripted"
api = "chat"
endpoints = [{{ url = "{url}" }}]

[questions]
sources = [{{ path = "tasks.jsonl", dataset = "bfcl", payload = ["task"] }}]

[environment]
type = "conversations.py:Conversation"
max_turns = 60

[environment.tools.functions]
type = "conversations.py:Functions"
folder = "{folder}"
"""
Gold = list[list[Any]]
MISFITS = {
    "live_multiple_737-167-8", "live_multiple_947-197-0", "live_parallel_multiple_2-2-0",
    "live_parallel_multiple_21-18-0",
}  # fmt: skip
"""Tasks with a gold call that does not fit the schema of its own function: the model is told so."""


@pytest.fixture(scope="module")
def package() -> Path:
    return bfcl_folder()


@pytest.fixture(scope="module")
def tasks(package: Path) -> dict[str, dict[str, Any]]:
    found = {task["id"]: task for task in ask_package(package, "tasks")}
    assert len(found) == 250 and sum(len(task["turns"]) > 1 for task in found.values()) == 50
    return found


def in_hermes_form(calls: Gold) -> str:
    written = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls]
    return "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in written)


def test_calls_in_text_are_read_like_the_package_reads_them(package: Path, tasks: dict[str, dict[str, Any]]) -> None:
    gold = [calls for task in tasks.values() for calls in task["gold"] if calls]
    texts = [in_hermes_form(calls) for calls in gold]
    turns = [FunctionsDialect().read(text, 0, "end_of_turn") for text in texts]
    read = [[[call.tool, dict(call.arguments)] for call in turn.calls] for turn in turns]
    assert read == ask_package(package, "parse_text", texts) == gold


def test_gold_calls_are_sent_run_and_ledgered(package: Path, tasks: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    def answer(request: RecordedRequest) -> Reply:
        messages = request.messages or []
        task = tasks.get(str(messages[0]["content"]))
        if task is None or messages[-1]["role"] == "tool":  # a check of the server, or results
            return Reply("Done.")
        calls = task["gold"][sum(message["role"] == "user" for message in messages) - 1]
        return Reply("", calls=tuple((name, given) for name, given in calls))

    desk = Desk(tmp_path)
    shutil.copy(conversations.__file__, tmp_path / "conversations.py")
    desk.write(
        "tasks.jsonl", *({"question": f"Task {name}.", "task": json.dumps(task)} for name, task in tasks.items())
    )
    with served(answer, chat_only=True) as server:
        (tmp_path / "bfcl.toml").write_text(CONFIG.format(url=server.url, folder=package))
        desk.treadle("run", "bfcl.toml", "--run", "bfcl").succeeded()
        asked = [request for request in server.requests if request.messages and request.messages[0]["content"] in tasks]
    rollouts = {
        json.loads(row["first_messages"])[0]["content"]: row
        for row in desk.rows("bfcl", "1/rollouts@agent", "rollouts")
    }
    assert rollouts.keys() == tasks.keys() and {row["status"] for row in rollouts.values()} == {"finished"}
    for request in asked:
        sent = {tool["function"]["name"]: tool["function"]["parameters"] for tool in request.body["tools"]}
        task = tasks[str(request.messages[0]["content"])]  # type: ignore[index]
        assert sent == {one["name"]: json_schema(one["parameters"]) for one in task["functions"]}
    made = {}
    misfits = set()
    for name, task in tasks.items():
        gold = [(number, *call) for number, calls in enumerate(task["gold"]) for call in calls]
        ledger = json.loads(rollouts[name]["tool_calls"])
        expected = [(tool, Call("", tool, given).text) for _, tool, given in gold]
        assert [(one["tool"], one["argument"]) for one in ledger] == expected, name
        if {one["status"] for one in ledger} != {"ok"}:
            misfits.add(name)
            continue
        segments = json.loads(rollouts[name]["segments"])
        results = [segment["text"] for segment in segments if segment["kind"] == "tool"]
        if task["results"]:
            assert results == [text for texts in task["results"] for text in texts], name
        else:
            made[name] = [json.loads(text) for text in results]
            assert made[name] == [[tool, given] for _, tool, given in gold]
    assert misfits == MISFITS and len(made) == 200 - len(MISFITS)
    assert ask_package(package, "check", [{"id": name, "calls": calls} for name, calls in made.items()]) == []


def test_wrong_calls_are_found_by_the_packages_checker(package: Path, tasks: dict[str, dict[str, Any]]) -> None:
    """The checker of the test above can fail."""
    name, task = next(iter(tasks.items()))
    ((tool, given),) = task["gold"][0]
    wrong = ([tool, {**given, "nope": 1}], [f"{tool}s", given])
    assert len(ask_package(package, "check", [{"id": name, "calls": [call]} for call in wrong])) == 2
