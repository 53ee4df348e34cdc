"""The stage `rollouts` with native calls of an MCP server's tools; no journaled call is made again after kills."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.rollouts.mcp_run import play
from support.rollouts.rollouts_bench import Bench
from support.sandbox import mcp_bare
from support.sandbox.sandbox_users import TESTS
from support.servers import mcp_desk
from support.servers.hosted_service import agent_requests, hosted
from support.servers.scripted_server import RecordedRequest, Reply

from treadle.core.errors import JobsPending

NUM_KILLS = int(os.environ.get("TREADLE_KILL_POINTS", "1"))
ANSWER = Reply("It is \\boxed{1}.")
SERVER = {"type": "mcp", "command": [sys.executable, mcp_desk.__file__]}
BARE = {"type": "mcp", "command": [sys.executable, mcp_bare.__file__]}
SANDBOXED = {**SERVER, "read": [mcp_desk.__file__]}


def num_results(request: RecordedRequest) -> int:
    """Return the results that the agent had when it asked."""
    assert request.messages is not None
    return sum(message["role"] == "tool" for message in request.messages)


def calling(*names: str) -> Any:
    """Return a script that calls tools one after the other, and answers then."""

    def script(request: RecordedRequest) -> Reply:
        number = num_results(request)
        return Reply("", calls=((names[number], {}),)) if number < len(names) else ANSWER

    return script


def nonces(text: str) -> set[str]:
    return set(re.findall(r"nonce (\w+)", text))


def ledger(row: dict[str, Any]) -> list[tuple[str, str]]:
    return [(call["tool"], call["status"]) for call in json.loads(row["tool_calls"])]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "root", [f"Question {number}?" for number in range(4)])


async def test_an_agent_calls_tools_of_a_sandboxed_server(bench: Bench) -> None:
    async with hosted(calling("desk_count", "desk_fail", "desk_nothing", "desk_parts")) as service:
        record = await play(bench, service.url, SANDBOXED, max_questions=1)
        requests = agent_requests(service)
    (row,) = bench.rows(record)
    assert row["status"] == "answered"
    assert ledger(row) == [
        ("desk_count", "ok"),
        ("desk_fail", "error"),
        ("desk_nothing", "invalid"),
        ("desk_parts", "ok"),
    ]
    offered = {tool["function"]["name"] for tool in requests[0].body["tools"]}
    assert {"desk_add", "desk_parts"} <= offered
    assert requests[-1].messages is not None
    assert "[image image/png, 3 KiB, not shown]" in requests[-1].messages[-1]["content"]
    facts = record.model_dump_json()
    assert "desk 1.2" in facts
    assert "desk_tools_sha256" in facts


async def test_a_tool_that_a_server_adds_is_in_the_next_requests(bench: Bench) -> None:
    async with hosted(calling("desk_learn", "desk_learnt")) as service:
        record = await play(bench, service.url, {**SANDBOXED, "per_episode": True}, max_questions=2)
        requests = agent_requests(service)
    for row in bench.rows(record):
        assert ledger(row) == [("desk_learn", "ok"), ("desk_learnt", "ok")]
    for request in requests:
        names = [tool["function"]["name"] for tool in request.body["tools"]]
        assert ("desk_learnt" in names) == (num_results(request) > 0)


async def test_a_server_that_dies_leaves_rollouts_pending(bench: Bench, tmp_path: Path) -> None:
    tool = {**BARE, "sandbox": "none", "env": [f"DIED={tmp_path / 'died'}"]}
    script = calling("desk_count", "desk_die")
    async with hosted(script) as service:
        with pytest.raises(JobsPending, match="ended with exit code 3; its last words: no paper left"):
            await play(bench, service.url, tool, max_questions=1)
        shown = nonces(agent_requests(service)[-1].text)
    async with hosted(script) as service:
        record = await play(bench, service.url, tool, max_questions=1)
        # The call that was not answered is made again; the model is not asked for it again.
        assert [num_results(request) for request in agent_requests(service)] == [2]
    (row,) = bench.rows(record)
    assert ledger(row) == [("desk_count", "ok"), ("desk_die", "ok")]
    assert nonces(row["segments"]) == shown


async def test_a_killed_server_is_started_again(bench: Bench, tmp_path: Path) -> None:
    server = tmp_path / "server.py"
    shutil.copyfile(mcp_bare.__file__, server)
    tool = {"type": "mcp", "command": [sys.executable, "server.py"], "read": [str(server)]}
    killed = 0

    def script(request: RecordedRequest) -> Reply:
        nonlocal killed
        if killed < 3 and num_results(request) == 1:
            killed += 1
            _kill(server)
        return reply(request)

    reply = calling("desk_count", "desk_count", "desk_count")
    async with hosted(script) as service:
        record = await play(bench, service.url, tool, pending_retries=5)
        seen = set().union(*(nonces(request.text) for request in agent_requests(service)))
    rows = bench.rows(record)
    assert killed == 3
    assert {row["status"] for row in rows} == {"answered"}
    assert seen == set().union(*(nonces(row["segments"]) for row in rows))


async def test_no_journaled_call_is_made_again_after_kills_of_the_run(bench: Bench, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    # Without the sandbox, which has no place for a log of calls outside of it.
    tool = {**BARE, "sandbox": "none", "env": [f"CALL_LOG={log}"]}
    reply = calling(*["desk_count"] * 4)
    process: subprocess.Popen[bytes] | None = None
    left = 0

    def script(request: RecordedRequest) -> Reply:
        nonlocal left
        left -= num_results(request) > 0
        if left < 0 and process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        return reply(request)

    async with hosted(script) as service:
        for kill in range(NUM_KILLS):
            left = 2 + kill
            command = [sys.executable, "-m", "support.rollouts.mcp_run", str(tmp_path / "root"), service.url]
            process = subprocess.Popen([*command, json.dumps(tool)], cwd=TESTS, stderr=subprocess.DEVNULL)
            while process.poll() is None:
                await asyncio.sleep(0.02)
            assert process.returncode == -signal.SIGKILL
        process = None
        record = await play(bench, service.url, tool)
        shown = set().union(*(nonces(request.text) for request in agent_requests(service)))
    recorded = set().union(*(nonces(row["segments"]) for row in bench.rows(record)))
    made = log.read_text().split()
    assert len(recorded) == 4 * 4
    # A result that the model was shown was journaled, and stays.
    assert shown == recorded
    assert recorded <= set(made)
    assert len(made) <= len(recorded) + 2 * NUM_KILLS, "more calls were made again than were in flight at the kills"


def _kill(server: Path) -> None:
    """Kill all processes that have the file of a server among their arguments."""
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and str(server).encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                os.kill(int(name), signal.SIGKILL)
