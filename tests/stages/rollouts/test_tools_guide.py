"""The guide's tools as a user runs them: a function in a file, called natively by a scripted chat service."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from support.docs_pages import FILE, ROOT, blocks
from support.runs.command_line import Desk
from support.servers.scripted_server import RecordedRequest, Reply, served

from treadle.agent.contract import Outcome, Task
from treadle.agent.tools.outcome import CallContext
from treadle.agent.tools.settings import ToolResources
from treadle.environments.tools.registry import TOOLS

GUIDE = ROOT / "docs/guides/tools.md"


def ask_the_station(request: RecordedRequest) -> Reply:
    """Call `weather`, first for a city without a station, and answer with the temperature."""
    messages = request.messages or []
    results = [message["content"] for message in messages if message["role"] == "tool"]
    question = next((str(one["content"]) for one in messages if one["role"] == "user"), "")
    if "How many degrees" not in question:  # a check of the server
        return Reply("fine")
    city, unit = ("Oslo", "C") if "Oslo" in question else ("Cairo", "F")
    if not results:
        return Reply("", calls=(("weather", {"city": "Paris"}), ("weather", {"city": 3})))
    if len(results) == 2:
        return Reply("", calls=(("weather", {"city": city, "unit": unit}),))
    return Reply(rf"It is \boxed{{{json.loads(results[-1])['temperature']:g}}}.")


def desk_of_the_guide(folder: Path, url: str) -> Desk:
    """Write the files of the guide, with this server in place of the one that it names."""
    folder.mkdir()
    for block in blocks(GUIDE):
        if block.remark.startswith(FILE):
            text = block.text.replace("http://127.0.0.1:8000/v1", url).replace("your-model", "scripted")
            (folder / block.remark.removeprefix(FILE)).write_text(text)
    return Desk(folder)


def test_guide_runs_as_written(tmp_path: Path) -> None:
    with served(ask_the_station, chat_only=True) as server:
        desk = desk_of_the_guide(tmp_path / "desk", server.url)
        plan = desk.treadle("run", "weather.toml", "--run", "weather", "--dry-run").succeeded()
        shown = [line.strip() for line in plan.out.splitlines()]
        (schema,) = [json.loads(line.removeprefix("weather: ")) for line in shown if line.startswith("weather: {")]
        assert "time_limit_s = 60.0  Seconds that one call may take; then its outcome is `timeout`." in shown
        desk.treadle("run", "weather.toml", "--run", "weather").succeeded()
        asked = [request for request in server.requests if "How many degrees" in request.text]
    rollouts = desk.rows("weather", "1/rollouts@agent", "rollouts")
    assert [row["status"] for row in rollouts] == ["answered", "answered"]
    assert {json.dumps(request.body["tools"]) for request in asked} == {
        json.dumps([{"type": "function", "function": schema}])
    }
    assert schema["description"] == "Return today's temperature in a city."
    assert schema["parameters"]["properties"]["unit"] == {
        "enum": ["C", "F"], "type": "string", "default": "C", "description": "Unit of the temperature.",
    }  # fmt: skip
    for row in rollouts:
        calls = json.loads(row["tool_calls"])
        assert [(call["tool"], call["status"], call["turn"]) for call in calls] == [
            ("weather", "error", 0), ("weather", "invalid", 0), ("weather", "ok", 1),
        ]  # fmt: skip
        assert calls[0]["note"].startswith("my_tools.py, line ")
        results = [one["text"] for one in json.loads(row["segments"]) if one["kind"] == "tool"]
        assert results[0] == "LookupError: no station in Paris" and "3 is not of type" in results[1]
    scores = desk.rows("weather", "1/scores@agent", "scores")
    assert all(row["correct"] for row in scores)


def test_edited_file_is_another_environment(tmp_path: Path) -> None:
    with served(ask_the_station, chat_only=True) as server:
        desk = desk_of_the_guide(tmp_path / "desk", server.url)
        desk.treadle("run", "weather.toml", "--run", "weather").succeeded()
        source = desk.folder / "my_tools.py"
        source.write_text(source.read_text().replace("4.0", "5.0"))
        told = desk.treadle("run", "weather.toml", "--run", "weather")
    assert told.failed("the code of environment.tools.weather was edited since run weather began")


def test_what_cannot_be_a_tool_is_refused_before_the_run(tmp_path: Path) -> None:
    desk = desk_of_the_guide(tmp_path / "desk", "http://127.0.0.1:9/v1")
    source = desk.folder / "my_tools.py"
    source.write_text(source.read_text().replace("city: str, ", "city, "))
    run = ("run", "weather.toml", "--run", "weather")
    told = desk.treadle(*run, "--dry-run")
    assert told.failed("environment.tools.weather", "annotate the parameter 'city', such as `city: str`", code=2)
    told = desk.treadle(*run, "--dry-run", "--set", "environment.tools.weather.type=my_tool.py:weather")
    assert told.failed("there is no file", "my_tool.py", code=2)
    told = desk.treadle(*run, "--dry-run", "--set", 'environment.tools.w.type="webhook"')
    assert told.failed("'webhook' is unknown", "http", "my_tools.py:weather", code=2)


def test_class_of_the_guide_sells_and_tells_its_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = [block.text for block in blocks(GUIDE) if "class Shop" in block.text]
    Path("my_tools.py").write_text(code)
    settings = TOOLS.parse({"type": "my_tools.py:Shop", "price": 3})

    async def play() -> tuple[str, Outcome | None]:
        async with settings.source("shop", ToolResources()) as source:
            tools = await source.episode(Task("k", "q", payload={"stock": 2}), seed=0)
            context = CallContext("q", (), seed=0)
            sold = await tools.call("sell", {"number": 2}, deadline=float("inf"), context=context)
            return sold.text, await tools.outcome()

    assert asyncio.run(play()) == ("6.0 are due", Outcome(1.0))
