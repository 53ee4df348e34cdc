"""The environment service towards other clients: the original's, and those that send anything."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import orjson
import pytest
from support.environments.original_client import OriginalClient
from support.environments.served_environment import ODD, served
from support.environments.strict_client import Refused, StrictClient

from treadle.environments.ledger.assignment import Assignment
from treadle.environments.ledger.environment import solution_text
from treadle.environments.registry import ENVIRONMENTS, environment_type
from treadle.environments.service import kinds
from treadle.environments.service.errors import ServiceError
from treadle.environments.service.wire import Envelope

JSON = {"Content-Type": "application/json"}
LEDGER = ENVIRONMENTS.parse("ledger")


@pytest.mark.covers("service-2")
async def test_client_of_the_original_plays_a_task() -> None:
    rows = environment_type(LEDGER).tasks(LEDGER, "heldout", 0)
    seeds = [row["payload"]["seed"] async for row in rows]
    async with served("ledger") as (strict, _):
        client = OriginalClient(strict.session, strict.url)
        ids = await client.get_env_profile("ledger", split="heldout")
        assert len(ids) == len(seeds)
        state = await client.create_instance("ledger", ids[0])
        assert set(state) == {"state", "reward", "is_terminated", "info"}
        assert [message["role"] for message in state["state"]] == ["system", "user"]
        name = state["info"]["instance_id"]
        # The original names instances so.
        assert name.startswith("exp_") and name.split("_")[1].isdigit() and len(name.split("_")[2]) == 8
        lines = solution_text(Assignment.make(seeds[0]))
        for number, line in enumerate(lines):
            state = await client.step(name, {"role": "assistant", "content": line})
            assert set(state) == {"state", "reward", "is_terminated", "info"} and len(state["state"]) == 1
            assert state["is_terminated"] is (number == len(lines) - 1)
        assert isinstance(await client.get_info(name), str)
        for sparse in (True, False):
            assert await client.evaluate(name, {"sparse": sparse}) == 1.0
        assert [await client.release_instance(name) for _ in range(2)] == [True, False]
        for endpoint in (client.step(name, {"role": "assistant", "content": "x"}), client.evaluate(name, {})):
            with pytest.raises(aiohttp.ClientResponseError) as refused:
                await endpoint
            assert refused.value.status == 404
        with pytest.raises(aiohttp.ClientResponseError) as refused:
            await client.get_env_profile("appworld")
        assert refused.value.status == 404


BIG = 10**30


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/step", b"", 400),
        ("/step", b"\xff\xfe", 400),
        ("/step", b"{}{}", 400),
        ("/step", b"[]", 422),
        ("/step", b"null", 422),
        ("/step", b'{"messages": null}', 422),
        ("/step", b'{"instance_id": "one", "messages": ' + b"[" * 9_000 + b"]" * 9_000 + b"}", 400),
        ("/step", b'{"instance_id": "one", "messages": {"role": "assistant", "content": "\\ud800"}}', 400),
        ("/step", {"instance_id": "one", "messages": {"role": "assistant"}, "params": {"x": BIG}}, 422),
        ("/step", {"instance_id": "one", "messages": {"role": "assistant", "content": ["x"]}}, 400),
        ("/create", {"task_id": "plain", "params": {"seed": BIG}}, 422),
        ("/create", {"task_id": "plain", "params": {"seed": "x"}}, 400),
        ("/create", {"task_id": "y" * 100_000}, 422),
        ("/create", {"task_id": "../../etc/passwd\n"}, 404),
        ("/create", {"task_id": "plain", "env_type": "z" * 100_000}, 422),
        ("/create", {"task_id": "plain", "env_type": "../odd_envs.py:Odd"}, 404),
        ("/create", {"task_id": "plain", "instance_id": "../one"}, 422),
        ("/create", {"task_id": "plain", "instance_id": ".."}, 422),
        ("/create", {"task_id": "plain", "instance_id": "a\x00b"}, 422),
        ("/create", {"task_id": "plain", "instance_id": "i" * 300}, 422),
        ("/create", {"task_id": "plain", "params": {"timeout_s": "1"}}, 422),
        ("/get_env_profile", {"params": {"split": ["train"]}}, 422),
        ("/get_env_profile", {"params": {"task_seed": BIG}}, 422),
        ("/nowhere", {}, 404),
    ],
)  # fmt: skip
async def test_any_body_gets_a_short_structured_error_and_does_nothing(
    odd: StrictClient, path: str, body: bytes | dict[str, Any], status: int
) -> None:
    await odd.create("plain", instance_id="one")
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with odd.session.post(odd.url + path, data=sent, headers=JSON) as response:
        raw = await response.read()
    assert response.status == status and len(raw) < 500
    reply = orjson.loads(raw)
    assert set(reply) == {"success", "error"} and set(reply["error"]) == {"code", "message", "retryable"}
    assert reply["error"]["code"] != "internal" and not reply["error"]["retryable"]
    assert {name: one["num_steps"] for name, one in (await odd.instances()).items()} in ({"one": 0}, {"one": 1})
    assert (await odd.step("one", "x", request_id="r"))["state"][0]["content"] == "x 1"


@pytest.fixture
async def odd(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(kinds, "runs_foreign_code", lambda settings: False)
    async with served(ODD) as (client, _):
        yield client


async def test_ids_may_have_any_other_characters(odd: StrictClient) -> None:
    name = "ü 實例 \u202e'\"%{}:"
    await odd.create("plain", instance_id=name, request_id=f"{name}.create")
    assert (await odd.step(name, "x", request_id=name))["state"][0]["content"] == "x 1"
    assert list(await odd.instances()) == [name] and await odd.release(name)


async def test_ids_of_a_thousand_strangers_leave_nothing_behind(odd: StrictClient) -> None:
    before = (await odd.get("/metrics"))[1].count("\n")
    for number in range(1_000):
        status, _ = await odd.post("/release", {"instance_id": f"stranger {number}"})
        assert status == 200
        if number % 10 == 0:
            with pytest.raises(Refused):
                await odd.step(f"stranger {number}", "x", request_id=f"r{number}")
    assert await odd.instances() == {}
    # Neither ids nor paths of callers become series; those of two routes are new.
    assert (await odd.get("/metrics"))[1].count("\n") <= before + 10


async def test_step_of_a_client_that_went_away_is_acted_once(odd: StrictClient) -> None:
    await odd.create("plain", instance_id="one")
    body = {"instance_id": "one", "messages": {"role": "assistant", "content": "sleep 0.2"}, "request_id": "r"}
    gone = asyncio.create_task(odd.post("/step", body))
    while (await odd.instances())["one"]["state"] != "busy":
        await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    status, raw = await odd.post("/step", body)
    assert (status, orjson.loads(raw)["data"]["state"][0]["content"]) == (200, "sleep 1")
    assert (await odd.instances())["one"]["num_steps"] == 1


@pytest.mark.parametrize("is_listing", [True, False])
async def test_create_during_sigterm_is_told_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, is_listing: bool
) -> None:
    monkeypatch.setattr(kinds, "runs_foreign_code", lambda settings: False)
    listing, go_on = asyncio.Event(), asyncio.Event()
    rows = kinds.ServedKind._rows

    async def held_rows(*arguments: Any) -> Any:
        listing.set()
        if is_listing:
            await go_on.wait()
        return await rows(*arguments)

    monkeypatch.setattr(kinds.ServedKind, "_rows", held_rows)
    async with served(ODD, drain_s=0.1, close_timeout_s=0.1) as (_, service):
        making = asyncio.create_task(service.create(Envelope(task_id="plain" if is_listing else "hang-in-reset")))
        await listing.wait()
        while not is_listing and not service.instances:
            await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(ServiceError) as told:
        await making
    assert told.value.code in ({"shutting_down"} if is_listing else {"env_crashed", "instance_not_found"})
    assert len(service.instances) == 0 and service.num_processes == 0


async def test_type_that_took_too_long_is_named_in_the_metrics(odd: StrictClient) -> None:
    assert 'needs_process{env_type="odd_envs.py:Odd"} 0.0' in (await odd.get("/metrics"))[1]
    name = (await odd.create("plain"))["info"]["instance_id"]
    await odd.step(name, "spin 0.06")
    assert 'needs_process{env_type="odd_envs.py:Odd"} 1.0' in (await odd.get("/metrics"))[1]
