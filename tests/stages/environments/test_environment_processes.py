"""The environment service with environments of users: a process for each instance, and its end."""

from __future__ import annotations

import asyncio
import os
import signal
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from support.environments.served_environment import NOOP, ODD, ServedProcess, is_alive, served
from support.environments.strict_client import Refused, StrictClient
from support.sweep import sampled


async def created(client: StrictClient, task_id: str = "plain", **fields: object) -> str:
    name: str = (await client.create(task_id, **fields))["info"]["instance_id"]
    return name


async def said(client: StrictClient, name: str, text: str, **fields: object) -> str:
    content: str = (await client.step(name, text, **fields))["state"][0]["content"]
    return content


@pytest.fixture(scope="module")
def running() -> Iterator[ServedProcess]:
    """Serve what the tests of this file share."""
    with ServedProcess(ODD, "--set", "service.close_timeout_s=0.3") as service:
        yield service


@pytest.fixture
async def shared(running: ServedProcess) -> AsyncIterator[StrictClient]:
    """Return a client of the shared service, in which the test leaves nothing."""
    async with aiohttp.ClientSession() as session:
        client = StrictClient(session, running.url)
        yield client
        for name in await client.instances():
            await client.release(name)
        assert await client.metric("treadle_environment_processes") == 0


async def gone(pid: int) -> None:
    while is_alive(pid):
        await asyncio.sleep(0.01)


async def num_processes(client: StrictClient) -> float:
    return await client.metric("treadle_environment_processes")


async def processes_end(client: StrictClient) -> None:
    """Wait for the last process: a caller is told before the service has seen its end."""
    async with asyncio.timeout(60):
        while await num_processes(client):
            await asyncio.sleep(0.02)


async def test_each_instance_has_a_process_of_its_own_that_ends_with_it(shared: StrictClient) -> None:
    names = [await created(shared) for _ in range(3)]
    pids = [int((await said(shared, name, "pid")).split()[0]) for name in names]
    assert len(set(pids)) == 3
    assert [one["pid"] for one in (await shared.instances()).values()] == pids
    assert [await said(shared, name, "x") for name in names] == ["x 2"] * 3
    last = await shared.step(names[0], "done")
    assert last["is_terminated"] and last["reward"] == 1.0 and last["state"][0]["content"] == "bye"
    assert await shared.evaluate(names[0]) == 0.5
    assert await shared.evaluate(names[0], params={"sparse": True}) == 0.0
    for name in names:
        assert await shared.release(name)
    for pid in pids:
        await gone(pid)


@pytest.mark.covers("service-3")
@pytest.mark.parametrize(
    ("task_id", "code"),
    [("raise-in-reset", "env_error"), ("hang-in-reset", "env_timeout"), ("exit-in-reset", "env_crashed")],
)
async def test_failed_create_leaves_nothing_behind(shared: StrictClient, task_id: str, code: str) -> None:
    failed = await shared.metric("treadle_environment_calls_failed_total")
    with pytest.raises(Refused) as refused:
        await created(shared, task_id, params={"timeout_s": 0.5 if code == "env_timeout" else 60.0})
    assert refused.value.code == code
    assert await shared.instances() == {} and await num_processes(shared) == 0
    assert await shared.metric("treadle_environment_calls_failed_total") == failed + 1


@pytest.mark.covers("service-5")
@pytest.mark.parametrize("way", ["sleep 300", "block 300"])
async def test_late_step_loses_its_instance_while_others_go_on(shared: StrictClient, way: str) -> None:
    late, other = await created(shared), await created(shared)
    pid = int((await said(shared, late, "pid")).split()[0])
    stuck = asyncio.create_task(shared.step(late, way, request_id="r", params={"timeout_s": 0.5}))
    assert await said(shared, other, "x") == "x 1"
    with pytest.raises(Refused) as refused:
        await stuck
    assert (refused.value.status, refused.value.code) == (504, "env_timeout")
    await gone(pid)
    # The same request gets the same reply, and another one no invented state.
    for request_id in ("r", "r.2"):
        with pytest.raises(Refused) as refused:
            await shared.step(late, way, request_id=request_id, params={"timeout_s": 0.5})
        assert refused.value.code == "env_timeout"
    assert (await shared.instances())[late]["state"] == "broken"
    assert await shared.release(late)
    assert await said(shared, other, "x") == "x 2"


async def test_ended_process_is_told_and_never_replaced(shared: StrictClient) -> None:
    name = await created(shared)
    for _ in range(2):
        with pytest.raises(Refused) as refused:
            await shared.step(name, "exit", request_id="r")
        assert (refused.value.status, refused.value.code) == (500, "env_crashed")
    with pytest.raises(Refused):
        await shared.evaluate(name)
    await processes_end(shared)
    assert await shared.release(name)


@pytest.mark.parametrize("task_id", ["big-score", "no-score"])
async def test_score_outside_of_the_interface_is_an_error_and_never_a_number(
    shared: StrictClient, task_id: str
) -> None:
    name = await created(shared, task_id)
    with pytest.raises(Refused) as refused:
        await shared.evaluate(name)
    assert refused.value.code == "env_error"


async def test_children_of_an_instance_end_with_it(shared: StrictClient) -> None:
    name = await created(shared)
    child = int((await said(shared, name, "child")).split()[0])
    assert is_alive(child)
    await shared.release(name)
    await gone(child)


async def test_release_of_a_busy_instance_is_forced_and_tells_its_caller(shared: StrictClient) -> None:
    name = await created(shared)
    stuck = asyncio.create_task(shared.step(name, "block 300"))
    while (await shared.instances())[name]["state"] != "busy":
        await asyncio.sleep(0.01)
    assert await shared.release(name)
    with pytest.raises(Refused) as refused:
        await stuck
    assert refused.value.code == "env_crashed"
    await processes_end(shared)


async def test_template_that_was_killed_takes_its_instances_along_and_starts_again(shared: StrictClient) -> None:
    name = await created(shared)
    pid = (await shared.instances())[name]["pid"]
    template = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(template, signal.SIGKILL)
    await gone(pid)
    with pytest.raises(Refused) as refused:
        await shared.step(name, "x")
    assert refused.value.code == "env_crashed"
    again = await created(shared)
    assert await said(shared, again, "x") == "x 1" and await num_processes(shared) == 1


async def test_error_of_the_environment_has_no_traceback_or_path_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with served(ODD) as (client, _):
        name = await created(client)
        with pytest.raises(Refused) as refused:
            await client.step(name, "raise")
        assert (refused.value.status, refused.value.code) == (500, "env_error")
        assert "ValueError" in refused.value.message
        number = refused.value.message.split()[-1]
        assert f"error {number}" in caplog.text and "it failed in" in caplog.text
        assert await said(client, name, "x") == "x 1"


@pytest.mark.covers("service-6")
async def test_idle_instances_end_whatever_their_close_does() -> None:
    limits = {"idle_timeout_s": 0.5, "sweep_interval_s": 0.2, "close_timeout_s": 0.5}
    async with served(ODD, **limits) as (client, service):
        tasks = ["raise-in-close", "hang-in-close", *["plain"] * 8]
        for task_id in tasks:
            await created(client, task_id)
        while service.instances or service.num_processes:
            await asyncio.sleep(0.02)
        assert await client.metric("treadle_environment_instances_reaped_total") == len(tasks)
        await created(client)
        while service.num_processes:
            await asyncio.sleep(0.02)


@pytest.mark.covers("service-8")
@pytest.mark.parametrize("count", sampled([200, 12], {12}))
async def test_instances_step_side_by_side_up_to_the_limit(count: int) -> None:
    async with served(NOOP, max_processes=count) as (client, _):
        names = await asyncio.gather(*(created(client, "noop", instance_id=f"i{number}") for number in range(count)))
        with pytest.raises(Refused) as refused:
            await created(client, "noop")
        assert (refused.value.status, refused.value.code, refused.value.retryable) == (429, "capacity", True)

        async def play(name: str) -> list[str]:
            return [await said(client, name, f"{name} {number}", request_id=str(number)) for number in range(10)]

        for name, told in zip(names, await asyncio.gather(*map(play, names)), strict=True):
            assert told == [f"{name} {number}" for number in range(10)]
        await client.release(names[0])
        await created(client, "noop")


@pytest.mark.covers("service-10")
def test_environment_is_found_by_file_module_and_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "their_envs-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: their-envs\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[treadle.environments]\ntheirs = their_envs:Odd\n")
    (tmp_path / "their_envs.py").write_bytes(Path(ODD.partition(":")[0]).read_bytes())
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    types = (ODD, "their_envs:Odd", "theirs")
    with ServedProcess(*types) as service:
        for name in ("odd_envs.py:Odd", "their_envs:Odd", "theirs"):
            state = posted(service, "/create", {"env_type": name, "task_id": "plain", "instance_id": name})
            assert state["data"]["info"]["task_id"] == "plain"
            action = {"role": "assistant", "content": "pid"}
            assert posted(service, "/step", {"instance_id": name, "messages": action})["success"]
        with urllib.request.urlopen(service.url + "/instances") as response:
            pids = {one["pid"] for one in orjson.loads(response.read())}
        assert len(pids) == 3 and service.process.pid not in pids


def posted(service: ServedProcess, path: str, body: object) -> dict[str, Any]:
    request = urllib.request.Request(service.url + path, orjson.dumps(body), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        reply: dict[str, Any] = orjson.loads(response.read())
        return reply


@pytest.mark.covers("service-1", "service-9")
def test_service_answers_when_it_says_so_and_drains_on_sigterm() -> None:
    with ServedProcess(ODD) as service:
        with urllib.request.urlopen(service.url + "/healthz") as response:
            assert (response.status, response.read()) == (200, b"OK")
        for _ in range(2):
            posted(service, "/create", {"task_id": "hang-in-close"})
        with urllib.request.urlopen(service.url + "/instances") as response:
            pids = [one["pid"] for one in orjson.loads(response.read())]
        assert len(pids) == 2 and all(map(is_alive, pids))
        assert service.stop() == 0
        assert not any(map(is_alive, pids))
