"""Instances in the service's own process: late calls are cancelled, and costly ones move a type to processes."""

from __future__ import annotations

import asyncio

import pytest
from support.environments.served_environment import ODD, served
from support.environments.strict_client import Refused

from treadle.environments.service import kinds


@pytest.fixture(autouse=True)
def _odd_is_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "runs_foreign_code", lambda settings: False)


@pytest.mark.covers("service-5")
async def test_late_call_is_cancelled_and_its_instance_dropped() -> None:
    async with served(ODD) as (client, service):
        late = (await client.create("plain"))["info"]["instance_id"]
        other = (await client.create("plain"))["info"]["instance_id"]
        stuck = asyncio.create_task(client.step(late, "sleep 300", request_id="r", params={"timeout_s": 0.3}))
        assert (await client.step(other, "x"))["state"][0]["content"] == "x 1"
        for _ in range(2):
            with pytest.raises(Refused) as refused:
                await stuck
            assert refused.value.code == "env_timeout"
            stuck = asyncio.create_task(client.step(late, "sleep 300", request_id="r", params={"timeout_s": 0.3}))
        with pytest.raises(Refused):
            await stuck
        assert (await client.instances())[late]["state"] == "broken"
        assert await client.release(late) and service.num_processes == 0
        assert (await client.step(other, "x"))["state"][0]["content"] == "x 2"


@pytest.mark.covers("service-3")
@pytest.mark.parametrize(("task_id", "code"), [("raise-in-reset", "env_error"), ("hang-in-reset", "env_timeout")])
async def test_failed_create_leaves_nothing_behind(task_id: str, code: str) -> None:
    async with served(ODD) as (client, _):
        with pytest.raises(Refused) as refused:
            await client.create(
                task_id, instance_id="one", params={"timeout_s": 0.3 if code == "env_timeout" else 60.0}
            )
        assert refused.value.code == code and await client.instances() == {}
        await client.create("plain", instance_id="one")


async def test_busy_instance_can_be_released_and_its_call_is_told() -> None:
    async with served(ODD, close_timeout_s=0.1) as (client, service):
        name = (await client.create("plain"))["info"]["instance_id"]
        stuck = asyncio.create_task(client.step(name, "sleep 300"))
        while service.instances.find(name).state != "busy":
            await asyncio.sleep(0)
        assert await client.release(name)
        with pytest.raises(Refused) as refused:
            await stuck
        assert refused.value.code == "env_crashed"


async def test_costly_step_moves_further_instances_to_processes() -> None:
    async with served(ODD) as (client, service):
        first = (await client.create("plain"))["info"]["instance_id"]
        assert (await client.step(first, "spin 0.06"))["state"][0]["content"] == "spin 1"
        second = (await client.create("plain"))["info"]["instance_id"]
        pids = {name: one["pid"] for name, one in (await client.instances()).items()}
        assert pids[first] is None and pids[second] is not None and service.num_processes == 1
        assert (await client.step(first, "x"))["state"][0]["content"] == "x 2"


async def test_idle_instances_end_whatever_their_close_does() -> None:
    async with served(ODD, idle_timeout_s=0.3, sweep_interval_s=0.1, close_timeout_s=0.2) as (client, service):
        for task_id in ("raise-in-close", "hang-in-close", "plain"):
            await client.create(task_id)
        while service.instances:
            await asyncio.sleep(0.02)
        await client.create("plain")
        while service.instances:
            await asyncio.sleep(0.02)
        assert await client.metric("treadle_environment_instances_reaped_total") == 4
