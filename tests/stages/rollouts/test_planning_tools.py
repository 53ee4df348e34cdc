"""The tools of planning agents in the stage `rollouts`: programs with input, web search and pages."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.pictures import png
from support.rollouts.rollouts_bench import FAST, Bench, server
from support.servers.scripted_server import Item, RecordedRequest
from support.tables.viewer_run import client
from support.web.web_rollouts import SmallWeb, said

from treadle.core.errors import ConfigError
from treadle.environments.planning.runtime import open_tools
from treadle.environments.planning.settings import PlanningSettings
from treadle.environments.types import Resources

MOSS = "<html><title>Moss</title><body><p>Moss is a small green plant. It grows on stones in the shade.</p></body>"
ANSWER = "<think>done</think><answer>7</answer>"
PROGRAM = "<think>add</think><code>```py\nprint(int(input()) + int(input()))\n```\n```sh\n3\n4\n```</code>\n"


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TREADLE_CACHE", str(tmp_path / "cache"))


def says(*texts: str) -> Callable[[RecordedRequest], Item]:
    """Return a model that writes these texts, each after the observation of the one before, then answers."""

    def reply(request: RecordedRequest) -> Item:
        number = said(request).count("<observation>")
        return texts[number] if number < len(texts) else ANSWER

    return reply


async def rolled_out(folder: Path, environment: dict[str, Any], *texts: str) -> dict[str, Any]:
    bench = Bench(folder / "root", ["How much is it?"])
    async with server(says(*texts)) as scripted:
        record = await bench.make(
            scripted.url, environment={"type": "planning", **environment}, options={"max_questions": 1}
        )
    (row,) = bench.rows(record)
    return row


async def test_a_program_reads_its_input_and_its_output_is_observed(tmp_path: Path) -> None:
    row = await rolled_out(tmp_path, {"dialect": "code"}, PROGRAM)
    (call,) = json.loads(row["tool_calls"])
    assert (call["tool"], call["status"], row["status"]) == ("code", "ok", "answered")
    assert "--- stdout ---\n7\n--- end of stdout ---" in row["text"]


async def test_a_page_of_a_search_is_read(tmp_path: Path) -> None:
    with SmallWeb({"moss": {"/moss": MOSS}}) as web:
        environment = {"dialect": "web", "search": {"web": web.settings()}}
        url = web.site.url("/moss")
        row = await rolled_out(
            tmp_path, environment, "<think>t</think><web_search>moss</web_search>\n",
            f"<think>where moss grows</think><crawl_page>{url}|{web.site.url('/none')}</crawl_page>\n",
        )  # fmt: skip
    search, page = json.loads(row["tool_calls"])
    assert (search["tool"], search["status"], page["tool"], page["status"]) == ("web_search", "ok", "crawl_page", "ok")
    assert f"Page 1 [{url}] Summary:" in row["text"] and "stones in the shade" in row["text"]
    assert "Page 2 [" in row["text"] and page["sources"]


async def test_a_picture_is_described_by_the_model_that_sees_and_shown_in_the_viewer(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "map.png").write_bytes(data := png(5, 3))
    looked = '<think>look</think><visual_inspector>```json\n{"file_path": "map.png", "question": "Where?"}\n```'
    policy = says(f"{looked}</visual_inspector>\n")

    def reply(request: RecordedRequest) -> Item:
        return "A grey field." if request.path.endswith("/chat/completions") else policy(request)

    tools = {"code": {"enabled": False}, "search": {"max_calls": 0}}
    environment = {"type": "planning", "dialect": "all", **tools}
    environment |= {"visual_inspector": {"folder": str(tmp_path / "pictures")}}
    bench = Bench(tmp_path / "root", ["Where is it?"])
    async with server(reply) as scripted:
        seeing = {"model": "scripted", "api": "chat", "endpoints": [{"url": scripted.url}], **FAST}
        record = await bench.make(
            scripted.url,
            environment=environment,
            roles={"vision": {"name": "vision", "model": seeing, "sampling": {"max_tokens": 100}}},
            options={"max_questions": 1},
        )
        (asked,) = [one for one in scripted.requests if "image_url" in json.dumps(one.body)]
    (row,) = bench.rows(record)
    (call,) = json.loads(row["tool_calls"])
    assert (call["tool"], call["status"], row["status"]) == ("visual_inspector", "ok", "answered")
    assert "A grey field." in row["text"]
    sent = asked.body["messages"][-1]["content"][-1]["image_url"]["url"]
    assert sent == f"data:image/png;base64,{base64.b64encode(data).decode()}"

    viewer = client(bench.run)
    shown = viewer.get(f"/trajectory/1/rollouts@base/{row['rollout_key']}").text
    (address,) = re.findall(r'<img class="picture" src="([^"]+)"', shown)
    found = viewer.get(address)
    assert (found.status_code, found.content, found.headers["content-type"]) == (200, data, "image/png")


async def test_pictures_need_a_model_that_sees() -> None:
    settings = PlanningSettings(dialect="all", code={"enabled": False}, search={"max_calls": 0})
    assert settings.enabled_tools == ("visual_inspector",) and settings.role_names == ("vision",)
    with pytest.raises(ConfigError, match="vision"):
        async with open_tools(settings, Resources()):
            pass
    without = settings.model_copy(
        update={"visual_inspector": settings.visual_inspector.model_copy(update={"enabled": False})}
    )
    assert without.enabled_tools == () and without.role_names == ()
