"""MCP servers over stdio in the sandbox: one of the official package, and one whose tools misbehave or look around."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.sandbox import mcp_bare
from support.sandbox.sandbox_users import TESTS, USERS, user_command
from support.servers import mcp_desk
from support.sweep import sampled

from treadle.agent.sandbox import server_process
from treadle.agent.tools.mcp import connection, stdio
from treadle.agent.tools.mcp.source import McpSource, McpTools
from treadle.agent.tools.outcome import CallContext, ToolOutcome
from treadle.agent.tools.settings import ToolResources
from treadle.core.errors import ToolError
from treadle.core.store.keyed_store import KeyedStore
from treadle.core.store.storage import LocalStorage
from treadle.environments.tools.registry import TOOLS

OURS = f"_of_test_{os.getpid()}.py"
"""End of the names of this process's copies, by which their servers are found."""
SERVER = Path(tempfile.gettempdir()) / f"mcp_desk{OURS}"
BARE = Path(tempfile.gettempdir()) / f"mcp_bare{OURS}"
FAR = 1e12
CONTEXT = CallContext("?", (), 0)
TASK: Any = None


@pytest.fixture(autouse=True, scope="module")
def own_copy() -> Iterator[None]:
    copies = {SERVER: mcp_desk.__file__, BARE: mcp_bare.__file__}
    for copy, original in copies.items():
        shutil.copyfile(original, copy)
        copy.chmod(0o644)
    yield
    for copy in copies:
        copy.unlink()


def settings_for(server: Path = SERVER, **keys: Any) -> Any:
    return TOOLS.parse({"type": "mcp", "command": [sys.executable, server.name], "read": [str(server)], **keys})


@asynccontextmanager
async def opened(store: Any = None, **keys: Any) -> AsyncIterator[McpSource]:
    source = settings_for(**keys).source("desk", ToolResources(store))
    assert isinstance(source, McpSource)
    async with source:
        yield source


@asynccontextmanager
async def episode(**keys: Any) -> AsyncIterator[McpTools]:
    async with opened(**keys) as source:
        tools = await source.episode(TASK, 0)
        try:
            yield tools
        finally:
            await tools.close()


async def call(tools: McpTools, name: str, **arguments: Any) -> ToolOutcome:
    return await tools.call(f"desk_{name}", arguments, deadline=FAR, context=CONTEXT)


def processes() -> set[int]:
    """Return the processes of this test's servers."""
    found = set()
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and OURS.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                found.add(int(name))
    return found


async def test_results_of_a_server_become_outcomes() -> None:
    async with episode() as tools:
        assert (await call(tools, "add", a=1, b=2)).text == "3"
        failed = await call(tools, "fail")
        assert failed.status == "error"
        assert "out of paper" in failed.text
        unknown = await call(tools, "nothing")
        assert unknown.status == "error"
        assert (await call(tools, "parts")).text.splitlines() == [
            "a picture:",
            "[image image/png, 3 KiB, not shown]",
            "[audio audio/wav, 3 bytes, not shown]",
            "[link to https://example.org/a, text/html]",
            "[resource file:///x.bin, 900 bytes, not shown]",
        ]
        assert (await call(tools, "structured")).text == '{"degrees":21,"sky":"clear\\u202e"}'
        hostile = (await call(tools, "hostile")).text
        assert "\0" not in hostile
        assert "\x1b" not in hostile
        assert "<|im_end|>" not in hostile
        assert "</tool_response>" not in hostile
        lone = await call(tools, "add", a=1, b=2, c="\ud800")
        assert lone.status in ("ok", "error")


async def test_long_results_keep_head_and_tail() -> None:
    async with episode(max_output_chars=200) as tools:
        text = (await call(tools, "long_text")).text
    assert len(text) == 200
    assert "characters left out" in text


async def test_a_server_sees_neither_network_nor_home_nor_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_SECRET", "kept-from-servers")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        async with episode(server=BARE, env=[f"PORT={port}", f"SEEN={Path.cwd() / 'pyproject.toml'}"]) as tools:
            closed = (await call(tools, "look")).text
    assert "network connected" not in closed
    assert "seen []" in closed
    assert "SOME_SECRET" not in closed
    assert "usr read-only" in closed
    assert "uid 0 " not in closed


async def test_network_read_and_env_open_a_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOME_SECRET", "given-to-servers")
    seen = tmp_path / "notes.txt"
    seen.write_text("x")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        env = [f"PORT={listening.getsockname()[1]}", "SOME_SECRET", f"SEEN={seen}"]
        settings = settings_for(BARE, env=env, network=True, read=[str(BARE), str(seen)])
        async with settings.source("desk", ToolResources()) as source:
            tools = await source.episode(TASK, 0)
            text = (await call(tools, "look")).text
            arguments = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in processes()]
    assert "network connected" in text
    assert "notes.txt" in text
    assert "SOME_SECRET" in text
    # Other users of the machine can read arguments.
    assert arguments
    assert not any(b"given-to-servers" in one for one in arguments)
    assert "given-to-servers" not in settings.model_dump_json()


async def test_added_tools_appear_after_the_call() -> None:
    async with episode(per_episode=True) as tools:
        before = {schema.name for schema in tools.schemas}
        assert (await call(tools, "learn")).text == "done"
        assert {schema.name for schema in tools.schemas} - before == {"desk_learnt"}
        assert (await call(tools, "learnt")).text == "learnt"


async def test_episodes_share_a_server_unless_each_gets_its_own() -> None:
    async with opened() as shared:
        one, other = [await shared.episode(TASK, 0) for _ in range(2)]
        assert [re.findall(r"call \d", (await call(tools, "count")).text) for tools in (one, other)] == [
            ["call 1"],
            ["call 2"],
        ]
        assert shared.resume == "stateless"
    async with opened(per_episode=True) as own:
        one, other = [await own.episode(TASK, 0) for _ in range(2)]
        assert [re.findall(r"call \d", (await call(tools, "count")).text) for tools in (one, other)] == [
            ["call 1"],
            ["call 1"],
        ]
        assert own.resume == "restart"
        await one.close()
        await other.close()


@pytest.mark.parametrize(
    ("tool", "reason"),
    [
        ("die", "ended with exit code 3; its last words: no paper left"),
        ("kill", "was killed by signal 9"),
        ("garbage", "no message (it must log to stderr): debug: \\x1b[31mhere"),
        ("flood_output", "writes without end and was killed"),
        ("flood_errors", "writes without end and was killed"),
        ("long_line", "sent a message of more than"),
    ],
)
async def test_a_broken_server_leaves_the_call_pending_and_starts_again(
    tool: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdio, "MAX_UNASKED_BYTES", 1 << 20)
    monkeypatch.setattr(stdio, "MAX_MESSAGE_BYTES", 1 << 18)
    async with episode(server=BARE) as tools:
        with pytest.raises(ToolError) as raised:
            await call(tools, tool)
        assert reason in str(raised.value)
        assert str(raised.value).startswith("environment.tools.desk: the MCP server ")
        assert "\n" not in str(raised.value)
        assert raised.value.retryable
        assert (await call(tools, "add", a=2, b=2)).text == "4"
    assert not processes()


@pytest.mark.parametrize("tool", sampled(["stop", "close_output"], ["stop"]))
async def test_a_server_that_answers_no_ping_is_infrastructure(tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with episode(server=BARE) as tools:
        with monkeypatch.context() as soon, pytest.raises(ToolError, match="answers neither the call nor a ping"):
            soon.setattr(connection, "PING_S", 0.3)
            await tools.call(f"desk_{tool}", {}, deadline=FAR, context=replace(CONTEXT, budget_s=0.3))
        assert (await call(tools, "add", a=1, b=1)).text == "2"
    assert not processes()


async def test_a_slow_call_of_an_answering_server_times_out() -> None:
    async with episode(server=BARE, timeout_s=0.3) as tools:
        outcome = await call(tools, "hang")
        assert outcome.status == "timeout"
        assert outcome.text == "The tool did not answer within 0.3 s."


async def test_a_server_over_its_memory_is_killed() -> None:
    async with episode(server=BARE, memory_mb=512) as tools:
        with pytest.raises(ToolError, match="memory"):
            await call(tools, "hold_memory")


async def test_the_server_of_an_episode_is_not_replaced() -> None:
    async with episode(server=BARE, per_episode=True) as tools:
        with pytest.raises(ToolError):
            await call(tools, "die")
        with pytest.raises(ToolError, match="the MCP server of this episode was lost"):
            await call(tools, "add", a=1, b=1)


async def test_calls_in_progress_fail_with_the_server() -> None:
    async with episode(server=BARE) as tools:
        hanging = asyncio.create_task(call(tools, "hang"))
        await call(tools, "add", a=1, b=1)
        with pytest.raises(ToolError):
            await call(tools, "die")
        with pytest.raises(ToolError):
            await hanging


async def test_no_descriptor_is_left_of_a_server_that_died() -> None:
    numbers = []
    async with opened(server=BARE) as source:
        for _ in range(3):
            tools = await source.episode(TASK, 0)
            with pytest.raises(ToolError):
                await call(tools, "die")
            assert (await call(tools, "add", a=1, b=1)).text == "2"
            links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
            numbers.append([os.readlink(link) for link in links if os.path.lexists(link)].count("anon_inode:[pidfd]"))
    assert numbers == numbers[:1] * 3


async def test_no_process_is_left_at_the_end() -> None:
    async with episode(server=BARE) as tools:
        hanging = asyncio.create_task(call(tools, "hang"))
        await call(tools, "add", a=1, b=1)
        assert processes()
        hanging.cancel()
    assert not processes()


async def test_a_stopped_server_does_not_hang_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_process, "_GRACE_S", 0.2)
    async with episode(server=BARE) as tools:
        stopping = asyncio.create_task(call(tools, "stop"))
        while not any(_state(pid) == "T" for pid in processes()):
            await asyncio.sleep(0.01)
        stopping.cancel()
    assert not processes()


def _state(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    return ""


_USER = """
import asyncio, os, sys
from treadle.agent.tools.outcome import CallContext
from treadle.agent.tools.settings import ToolResources
from treadle.environments.tools.registry import TOOLS

async def main():
    entry = {"type": "mcp", "command": [sys.executable, sys.argv[1]], "read": [sys.argv[1]]}
    async with TOOLS.parse(entry).source("desk", ToolResources()) as source:
        tools = await source.episode(None, 0)
        print("ready", flush=True)
        await tools.call("desk_hang", {}, deadline=1e12, context=CallContext("?", (), 0))

asyncio.run(main())
"""


async def test_no_process_survives_kill_9_of_treadle() -> None:
    user = subprocess.Popen([sys.executable, "-c", _USER, str(BARE)], stdout=subprocess.PIPE)
    assert user.stdout is not None
    assert user.stdout.readline() == b"ready\n"
    assert processes() - {user.pid}
    user.send_signal(signal.SIGKILL)
    user.wait()
    while processes():
        await asyncio.sleep(0.05)


async def test_facts_and_list_are_recorded_and_a_change_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def store(name: str) -> KeyedStore:
        return KeyedStore(LocalStorage(tmp_path), name)

    async with opened(store, server=BARE, tools=["add", "fail"]) as source:
        facts = source.facts()
    assert facts["server"] == "desk 1.2"
    assert facts["tools"] == "desk_add, desk_fail"
    recorded = store("mcp_tools").get(facts["tools_sha256"][:32])
    assert recorded is not None
    assert [tool["name"] for tool in json.loads(recorded)] == ["desk_add", "desk_fail"]
    assert "changed" not in caplog.text
    async with opened(store, server=BARE, tools=["add", "hang"]):
        pass
    assert "changed" not in caplog.text, "a server of another environment"
    program = BARE.read_text()
    BARE.write_text(program.replace("fail", "fall"))
    try:
        async with opened(store, server=BARE):
            pass
        BARE.write_text(program)
        async with opened(store, server=BARE):
            pass
    finally:
        BARE.write_text(program)
    assert "the MCP server's tools changed since the run began: added: desk_fail; removed: desk_fall" in caplog.text


def _python(code: str) -> dict[str, Any]:
    return {"command": [sys.executable, "-c", code], "read": []}


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"command": ["no-such-program"]}, "there is no program 'no-such-program'"),
        ({"read": [str(BARE), "/no/such/folder"]}, "read: there is no /no/such/folder"),
        ({"env": ["NO_SUCH_VARIABLE"]}, "environment variable NO_SUCH_VARIABLE is not set"),
        ({"tools": ["add", "subtract"]}, "the server has no tool 'subtract'"),
        ({"names": {"add": "same", "fail": "same"}}, "two tools would be named 'same'"),
        (_python("raise SystemExit('bad luck')"), "ended with exit code 1; its last words: bad luck"),
        (_python("import time; time.sleep(1000)") | {"start_timeout_s": 0.5}, "not ready within 0.5 s"),
        (_python("while True: print('x' * 9999)"), "wrote to standard output what is no message"),
    ],
)
async def test_a_start_that_fails_says_why(keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(ToolError) as raised:
        async with opened(**{"server": BARE, **keys}):
            pass
    assert reason in str(raised.value)
    assert str(raised.value).startswith("environment.tools.desk: ")
    assert "\n" not in str(raised.value)
    assert not processes()


async def test_a_server_can_run_without_the_sandbox(tmp_path: Path) -> None:
    log = tmp_path / "calls"
    async with episode(sandbox="none", command=[sys.executable, str(BARE)], env=[f"CALL_LOG={log}"]) as tools:
        text = (await call(tools, "count")).text
        assert log.read_text().split() == [text.split()[-1]]
        with pytest.raises(ToolError, match="was killed by signal 9"):
            await call(tools, "kill")
        assert (await call(tools, "add", a=1, b=1)).text == "2"
    assert not processes()


@pytest.mark.parametrize("user", USERS)
def test_the_sandbox_holds_for_each_user(user: str) -> None:
    done = subprocess.run(
        user_command(user, "support.sandbox.mcp_as_user", {}), capture_output=True, text=True, check=False, cwd=TESTS
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["uid"] == 0) == (user == "root")
    seen, spread = report["said"]
    assert "network connected" not in seen
    assert "seen []" in seen
    assert "usr read-only" in seen
    assert "uid 0 " not in seen
    assert spread == "processes refused, /dev/shm full, /dev refused"
