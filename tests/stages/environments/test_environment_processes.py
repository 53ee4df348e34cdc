"""The environment service with environments of users: a process for each instance, and its end."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from support.environments.served_environment import ODD, ServedProcess, is_alive, served
from support.environments.strict_client import Refused, StrictClient


async def created(client: StrictClient, task_id: str = "plain", **fields: object) -> str:
    name: str = (await client.create(task_id, **fields))["info"]["instance_id"]
    return name


async def said(client: StrictClient, name: str, text: str, **fields: object) -> str:
    content: str = (await client.step(name, text, **fields))["state"][0]["content"]
    return content


async def gone(pid: int) -> None:
    while is_alive(pid):
        await asyncio.sleep(0.01)


async def test_each_instance_has_a_process_of_its_own_that_ends_with_it() -> None:
    async with served(ODD) as (client, service):
        names = [await created(client) for _ in range(3)]
        pids = [int((await said(client, name, "pid")).split()[0]) for name in names]
        assert len(set(pids)) == 3
        assert [one["pid"] for one in (await client.instances()).values()] == pids
        assert [await said(client, name, "x") for name in names] == ["x 2"] * 3
        last = await client.step(names[0], "done")
        assert last["is_terminated"] and last["reward"] == 1.0 and last["state"][0]["content"] == "bye"
        assert await client.evaluate(names[0]) == 0.5
        assert await client.evaluate(names[0], params={"sparse": True}) == 0.0
        for name in names:
            assert await client.release(name)
        assert service.num_processes == 0
        for pid in pids:
            await gone(pid)


@pytest.mark.covers("service-3")
@pytest.mark.parametrize(
    ("task_id", "code"),
    [("raise-in-reset", "env_error"), ("hang-in-reset", "env_timeout"), ("exit-in-reset", "env_crashed")],
)
async def test_failed_create_leaves_nothing_behind(task_id: str, code: str) -> None:
    async with served(ODD) as (client, service):
        with pytest.raises(Refused) as refused:
            await created(client, task_id, params={"timeout_s": 0.5})
        assert refused.value.code == code
        assert await client.instances() == {} and service.num_processes == 0
        assert await client.metric("treadle_environment_calls_failed_total") == 1


@pytest.mark.covers("service-5")
@pytest.mark.parametrize("way", ["sleep 300", "block 300"])
async def test_late_step_loses_its_instance_while_others_go_on(way: str) -> None:
    async with served(ODD) as (client, _):
        late, other = await created(client), await created(client)
        pid = int((await said(client, late, "pid")).split()[0])
        stuck = asyncio.create_task(client.step(late, way, request_id="r", params={"timeout_s": 0.5}))
        assert await said(client, other, "x") == "x 1"
        with pytest.raises(Refused) as refused:
            await stuck
        assert (refused.value.status, refused.value.code) == (504, "env_timeout")
        await gone(pid)
        # The same request gets the same reply, and another one no invented state.
        for request_id in ("r", "r.2"):
            with pytest.raises(Refused) as refused:
                await client.step(late, way, request_id=request_id, params={"timeout_s": 0.5})
            assert refused.value.code == "env_timeout"
        assert (await client.instances())[late]["state"] == "broken"
        assert await client.release(late)
        assert await said(client, other, "x") == "x 2"


async def test_ended_process_is_told_and_never_replaced() -> None:
    async with served(ODD) as (client, service):
        name = await created(client)
        for _ in range(2):
            with pytest.raises(Refused) as refused:
                await client.step(name, "exit", request_id="r")
            assert (refused.value.status, refused.value.code) == (500, "env_crashed")
        with pytest.raises(Refused):
            await client.evaluate(name)
        assert service.num_processes == 0
        assert await client.release(name)


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


@pytest.mark.parametrize("task_id", ["big-score", "no-score"])
async def test_score_outside_of_the_interface_is_an_error_and_never_a_number(task_id: str) -> None:
    async with served(ODD) as (client, _):
        name = await created(client, task_id)
        with pytest.raises(Refused) as refused:
            await client.evaluate(name)
        assert refused.value.code == "env_error"


async def test_children_of_an_instance_end_with_it() -> None:
    async with served(ODD) as (client, _):
        name = await created(client)
        child = int((await said(client, name, "child")).split()[0])
        assert is_alive(child)
        await client.release(name)
        await gone(child)


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


async def test_release_of_a_busy_instance_is_forced_and_tells_its_caller() -> None:
    async with served(ODD, close_timeout_s=0.2) as (client, service):
        name = await created(client)
        stuck = asyncio.create_task(client.step(name, "block 300"))
        while (await client.instances())[name]["state"] != "busy":
            await asyncio.sleep(0.01)
        assert await client.release(name)
        with pytest.raises(Refused) as refused:
            await stuck
        assert refused.value.code == "env_crashed" and service.num_processes == 0


async def test_processes_beyond_the_limit_are_refused() -> None:
    async with served(ODD, max_processes=2) as (client, _):
        names = [await created(client) for _ in range(2)]
        with pytest.raises(Refused) as refused:
            await created(client)
        assert (refused.value.status, refused.value.code, refused.value.retryable) == (429, "capacity", True)
        await client.release(names[0])
        await created(client)


async def test_template_that_was_killed_takes_its_instances_along_and_starts_again() -> None:
    async with served(ODD) as (client, service):
        name = await created(client)
        pid = (await client.instances())[name]["pid"]
        template = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(template, signal.SIGKILL)
        await gone(pid)
        with pytest.raises(Refused) as refused:
            await client.step(name, "x")
        assert refused.value.code == "env_crashed"
        again = await created(client)
        assert await said(client, again, "x") == "x 1" and service.num_processes == 1


@pytest.mark.covers("service-1", "service-9")
def test_service_answers_when_it_says_so_and_drains_on_sigterm() -> None:
    import urllib.request

    import orjson

    with ServedProcess(ODD) as served_process:
        with urllib.request.urlopen(served_process.url + "/healthz") as response:
            assert (response.status, response.read()) == (200, b"OK")
        body = orjson.dumps({"task_id": "hang-in-close"})
        for _ in range(2):
            request = urllib.request.Request(served_process.url + "/create", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request) as response:
                assert response.status == 200
        with urllib.request.urlopen(served_process.url + "/instances") as response:
            pids = [one["pid"] for one in orjson.loads(response.read())]
        assert len(pids) == 2 and all(map(is_alive, pids))
        assert served_process.stop() == 0
        assert not any(map(is_alive, pids))
