"""The environment service over real HTTP, with environments in its own process."""

from __future__ import annotations

import asyncio

import pytest
from support.environments.served_environment import served
from support.environments.strict_client import Refused

from treadle.environments.ledger.assignment import Assignment
from treadle.environments.ledger.environment import solution_text
from treadle.environments.registry import ENVIRONMENTS, environment_type

LEDGER = ENVIRONMENTS.parse("ledger")


async def ledger_seeds(split: str = "train") -> list[int]:
    rows = environment_type(LEDGER).tasks(LEDGER, split, 0)
    return [row["payload"]["seed"] async for row in rows]


@pytest.mark.covers("service-2")
async def test_solution_of_a_task_scores_one_through_the_wire() -> None:
    seeds = await ledger_seeds()
    async with served("ledger") as (client, _):
        ids = await client.profile(env_type="ledger", params={"split": "train"})
        assert len(ids) == len(set(ids)) == len(seeds)
        for seed, task_id in list(zip(seeds, ids, strict=True))[:8]:
            first = await client.create(task_id, env_type="ledger", instance_id=f"i-{task_id}")
            assert first["state"][1]["content"] == Assignment.make(seed).text
            assert first["reward"] == 0.0 and first["is_terminated"] is False
            states = [await client.step(f"i-{task_id}", line) for line in solution_text(Assignment.make(seed))]
            assert [state["is_terminated"] for state in states] == [False] * (len(states) - 1) + [True]
            assert states[-1]["reward"] == 1.0
            assert await client.evaluate(f"i-{task_id}") == 1.0
            assert await client.evaluate(f"i-{task_id}", params={"sparse": True}) == 1.0
            assert await client.release(f"i-{task_id}")
            assert not await client.release(f"i-{task_id}")
        assert await client.instances() == {}


async def test_dense_and_sparse_scores_differ_for_half_a_solution() -> None:
    seed, task_id = next(
        (seed, number) for number, seed in enumerate(await ledger_seeds()) if len(Assignment.make(seed).solution) == 5
    )
    lines = solution_text(Assignment.make(seed))
    async with served("ledger") as (client, _):
        ids = await client.profile()
        for sparse, expected in ((False, 1 / 3), (True, 0.0)):
            name = (await client.create(ids[task_id]))["info"]["instance_id"]
            for line in lines[:3]:
                await client.step(name, line)
            last = await client.step(name, '{"call": "submit", "answer": null}', params={"sparse": sparse})
            assert last["is_terminated"] and last["reward"] == pytest.approx(expected)
            assert await client.evaluate(name, params={"sparse": sparse}) == pytest.approx(expected)


@pytest.mark.covers("service-4")
async def test_unknown_instance_is_refused_and_nothing_is_noted_of_it() -> None:
    async with served("ledger") as (client, service):
        for path in ("/step", "/evaluate", "/get_info"):
            with pytest.raises(Refused) as refused:
                await client.data(path, instance_id="nobody", messages={"role": "assistant", "content": "x"})
            assert (refused.value.status, refused.value.code) == (404, "instance_not_found")
        assert service.sweep() == service.sweep() == 0
        assert await client.metric("treadle_environment_instances_reaped_total") == 0
        assert len(service.instances) == 0 and await client.instances() == {}


@pytest.mark.covers("service-7")
async def test_repeated_request_id_acts_once_and_returns_the_same_bytes() -> None:
    async with served("ledger") as (client, _):
        (task_id, *_) = await client.profile()
        name = (await client.create(task_id))["info"]["instance_id"]
        action = {"role": "assistant", "content": '{"call": "transfer", "source": "A1", "target": "A2", "amount": 1}'}
        body = {"instance_id": name, "messages": action, "request_id": "r.0"}
        replies = await asyncio.gather(*(client.post("/step", body) for _ in range(5)))
        assert len(set(replies)) == 1 and replies[0][0] == 200
        assert (await client.instances())[name]["num_steps"] == 1
        other = {**action, "content": '{"call": "get_account", "account": "A1"}'}
        with pytest.raises(Refused) as refused:
            await client.data("/step", **{**body, "messages": other})
        assert (refused.value.status, refused.value.code) == (409, "request_conflict")
        await client.step(name, other["content"], request_id="r.1")
        assert (await client.post("/step", body)) == replies[0]
        assert (await client.instances())[name]["num_steps"] == 2


async def test_dropped_reply_is_refused_and_never_acted_again() -> None:
    async with served("ledger", kept_reply_bytes=1_000) as (client, _):
        name = (await client.create((await client.profile())[0]))["info"]["instance_id"]
        for number in range(20):
            await client.step(name, '{"call": "get_account", "account": "A1"}', request_id=f"r.{number}")
        with pytest.raises(Refused) as refused:
            await client.step(name, '{"call": "get_account", "account": "A1"}', request_id="r.0")
        assert (refused.value.status, refused.value.code) == (410, "reply_dropped")
        await client.step(name, '{"call": "get_account", "account": "A1"}', request_id="r.19")
        assert (await client.instances())[name]["num_steps"] == 20


async def test_repeated_create_returns_the_instance_of_the_first() -> None:
    async with served("ledger") as (client, _):
        (task_id, *_) = await client.profile()
        first, *others = await asyncio.gather(*(client.create(task_id, request_id="made") for _ in range(4)))
        assert others == [first] * 3 and await client.create(task_id, request_id="made") == first
        assert list(await client.instances()) == [first["info"]["instance_id"]]


async def test_id_in_use_is_refused_unless_it_is_replaced() -> None:
    async with served("ledger") as (client, _):
        first, second, *_ = await client.profile()
        await client.create(first, instance_id="one")
        with pytest.raises(Refused) as refused:
            await client.create(second, instance_id="one")
        assert (refused.value.status, refused.value.code) == (409, "instance_exists")
        await client.create(second, instance_id="one", params={"replace": True})
        assert [one["task_id"] for one in (await client.instances()).values()] == [second]


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/create", {}, 400, "bad_request"),
        ("/step", {}, 400, "bad_request"),
        ("/release", {}, 400, "bad_request"),
        ("/create", {"task_id": 3}, 422, "bad_request"),
        ("/create", {"task_id": "x", "params": []}, 422, "bad_request"),
        ("/create", {"task_id": "x", "env_type": "appworld"}, 404, "unknown_env"),
        ("/create", {"task_id": "no such task"}, 404, "unknown_task"),
        ("/create", {"task_id": "x", "params": {"timeout_s": -1}}, 422, "bad_request"),
    ],
)
async def test_wrong_requests_get_a_structured_error(path: str, body: object, status: int, code: str) -> None:
    async with served("ledger") as (client, _):
        with pytest.raises(Refused) as refused:
            await client.data(path, **body)  # type: ignore[arg-type]
        assert (refused.value.status, refused.value.code, refused.value.retryable) == (status, code, False)
        if code == "unknown_env":
            assert "ledger" in refused.value.message


async def test_action_that_is_none_is_refused_and_not_acted() -> None:
    async with served("ledger") as (client, _):
        name = (await client.create((await client.profile())[0]))["info"]["instance_id"]
        for action in ({"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"arguments": "{}"}]}):
            with pytest.raises(Refused) as refused:
                await client.data("/step", instance_id=name, messages=action, request_id="r")
            assert refused.value.code == "bad_request"
        await client.step(name, "hello", request_id="r")


async def test_native_calls_get_their_results_one_by_one() -> None:
    async with served("ledger") as (client, _):
        name = (await client.create((await client.profile())[0]))["info"]["instance_id"]
        calls = [
            {"id": "x", "index": 0, "type": "function", "name": "get_account", "arguments": '{"account": "A1"}'},
            {"id": "y", "type": "function", "function": {"name": "get_account", "arguments": '{"account": "A9"}'}},
        ]
        state = await client.step(name, "", action={"tool_calls": calls})
        (message,) = state["state"]
        assert message["role"] == "tool" and [call["id"] for call in message["tool_calls"]] == ["x", "y"]
        assert '"holder"' in message["tool_calls"][0]["result"] and '"error"' in message["tool_calls"][1]["result"]


async def test_capacity_is_refused_as_retryable() -> None:
    async with served("ledger", max_instances=2) as (client, _):
        first, second, third, *_ = await client.profile()
        await client.create(first, instance_id="a")
        await client.create(second, instance_id="b")
        with pytest.raises(Refused) as refused:
            await client.create(third)
        assert (refused.value.status, refused.value.code, refused.value.retryable) == (429, "capacity", True)
        await client.release("a")
        await client.create(third)


async def test_schema_and_metrics_are_published() -> None:
    async with served("ledger") as (client, _):
        status, schema = await client.get("/openapi.json")
        assert status == 200 and all(f'"/{name}"' in schema for name in ("create", "step", "evaluate", "release"))
        assert '"ErrorReply"' in schema and '"is_terminated"' in schema
        name = (await client.create((await client.profile())[0]))["info"]["instance_id"]
        await client.step(name, "hello")
        assert await client.metric("treadle_environment_instances") == 1
        assert await client.metric("treadle_environment_instances_created_total") == 1
        assert await client.metric("treadle_environment_step_seconds_count") == 1
        assert await client.metric("treadle_environment_step_quantile_seconds") > 0
