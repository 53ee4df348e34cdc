"""Classes whose objects are instances, as AgentEvolver's environments are, behind the service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from support.environments.served_environment import ServedProcess
from support.environments.strict_client import Refused, StrictClient

from treadle.core.errors import ConfigError
from treadle.environments.registry import ENVIRONMENTS, environment_type
from treadle.environments.service.settings import served_names
from treadle.environments.types import Resources

FOLDER = Path(__file__).parents[2] / "support/environments/counter"
PLACE = f"{FOLDER}/counter_env.py:CounterEnv"


@pytest.fixture(scope="module")
def running() -> Iterator[ServedProcess]:
    """Serve the class by its folder."""
    with ServedProcess(str(FOLDER), "--set", "environments.counter.params={by=2}") as service:
        yield service


async def test_class_is_served_as_it_is(running: ServedProcess) -> None:
    async with aiohttp.ClientSession() as session:
        client = StrictClient(session, running.url)
        assert await client.profile(params={"split": "train"}) == ["1", "2", "3"]
        assert await client.profile(params={"split": "dev", "first": 7}) == ["7"]
        first = await client.create("4", instance_id="a")
        assert first["info"] == {"instance_id": "a", "task_id": "4", "goal": 4}
        assert [one["content"] for one in first["state"]] == ["Count by 2.", "Reach 4."]
        state = await client.step("a", "count", params={"x": 1})
        assert (state["state"][0]["content"], state["reward"], state["is_terminated"]) == ("2", 0.0, False)
        assert state["info"] == {"by": 2, "x": 1}
        assert await client.evaluate("a") == 0.5
        last = await client.step("a", "count")
        assert (last["reward"], last["is_terminated"]) == (1.0, True)
        assert await client.evaluate("a", params={"sparse": True}) == 1.0
        assert await client.data("/get_info", instance_id="a") == "count()"
        assert await client.release("a")


async def test_what_is_no_state_or_score_is_an_error(running: ServedProcess) -> None:
    async with aiohttp.ClientSession() as session:
        client = StrictClient(session, running.url)
        await client.create("4", instance_id="b")
        for said in ("nothing", "nan"):
            with pytest.raises(Refused) as refused:
                await client.step("b", said)
            assert refused.value.code == "env_error"
        await client.step("b", "count")
        with pytest.raises(Refused) as refused:
            await client.evaluate("b", params={"sparse": True})
        assert refused.value.code == "env_error"
        with pytest.raises(Refused) as refused:
            await client.evaluate("b", messages={"role": "user", "content": "dict"})
        assert refused.value.code == "env_error"
        with pytest.raises(Refused) as refused:
            await client.step("b", "block", params={"timeout_s": 0.5})
        assert refused.value.code == "env_timeout"
        assert await client.release("b") and await client.instances() == {}


def test_rollouts_are_told_to_ask_the_service() -> None:
    settings = ENVIRONMENTS.parse({"type": PLACE, "params": {"by": 1}})
    with pytest.raises(ConfigError, match='environment.type = "service"'):
        environment_type(settings).open(settings, Resources())


def test_folder_names_the_class() -> None:
    assert served_names([f"{FOLDER}/", "ledger"]) == {"counter": PLACE, "ledger": "ledger"}
