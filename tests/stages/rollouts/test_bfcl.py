"""The environment `bfcl` on a stand-in for the package: processes, the order of a conversation, verdicts."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.environments.served_environment import served

from treadle.agent.contract import Call, EpisodeOptions, ModelTurn, Observation, Outcome, StepContext, Task
from treadle.core.engines.environments import engine_environ
from treadle.core.errors import ConfigError, DeadlineExceeded
from treadle.environments.bfcl import worker
from treadle.environments.custom.episode import CustomEpisode
from treadle.environments.registry import ENVIRONMENTS, environment_type
from treadle.environments.types import EnvironmentRuntime, Resources

STAND_IN = Path(__file__).parents[2] / "support" / "stub_bfcl_package"
SETTINGS = ENVIRONMENTS.parse({"type": "bfcl"})


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "python_of", lambda engine: Path(sys.executable))

    def environ(more: dict[str, str]) -> dict[str, str]:
        found = engine_environ(more)
        return {**found, "PYTHONPATH": os.pathsep.join([str(STAND_IN), found["PYTHONPATH"]])}

    monkeypatch.setattr(worker, "engine_environ", environ)


@pytest.fixture
async def runtime() -> AsyncIterator[EnvironmentRuntime]:
    async with environment_type(SETTINGS).open(SETTINGS, Resources()) as opened:
        yield opened


async def begun(runtime: EnvironmentRuntime, task: str, key: str = "id") -> tuple[CustomEpisode, list[str]]:
    episode: Any = runtime.episode()
    initial = await episode.reset(Task("k", "?", payload={key: task}), EpisodeOptions())
    return episode, [tool.name for tool in initial.tools]


async def act(episode: CustomEpisode, number: int, *calls: tuple[str, dict[str, Any]], error: str = "") -> Observation:
    made = tuple(Call(f"t{number}.{name}_{at}", name, given, error) for at, (name, given) in enumerate(calls))
    return await episode.step(ModelTurn("", number, "end_of_turn", calls=made), StepContext(float("inf")))


def texts(observation: Observation) -> list[str]:
    return [message.text for message in observation.messages]


async def test_tasks_of_the_configured_categories() -> None:
    rows = [row async for row in environment_type(SETTINGS).tasks(SETTINGS, "heldout", 0)]
    assert [(row["dataset"], row["payload"]["id"]) for row in rows] == [
        ("bfcl-base", "multi_turn_base_0"),
        ("bfcl-miss-func", "multi_turn_miss_func_0"),
        ("bfcl-long-context", "multi_turn_long_context_0"),
    ]
    assert [row async for row in environment_type(SETTINGS).tasks(SETTINGS, "train", 0)] == []


async def test_conversation_and_verdict(runtime: EnvironmentRuntime) -> None:
    right, tools = await begun(runtime, "multi_turn_base_0")
    wrong, _ = await begun(runtime, "multi_turn_base_0")
    assert tools == ["add", "read", "spin"]
    assert texts(await act(right, 0, ("add", {"by": 2}))) == ["{'value': 12}"]
    # The other episode of the task has objects of its own.
    assert texts(await act(wrong, 0, ("add", {"by": 1}), ("read", {}))) == ["{'value': 11}", "11"]
    for episode in (right, wrong):
        assert texts(await act(episode, 1)) == ["Add 3 and read."]
        observation = await act(episode, 2, ("add", {"by": 3}), ("read", {}))
        assert [record.id for record in observation.calls] == ["t2.add_0", "t2.read_1"]
        assert (await act(episode, 3)).status == "finished"
    # A verdict leaves no objects behind, so a second one is the same.
    assert [await right.outcome(), await right.outcome()] == [Outcome(1.0, True)] * 2
    assert await wrong.outcome() == Outcome(0.0, False)
    await right.close()
    await wrong.close()


async def test_held_out_function_is_added_with_a_message(runtime: EnvironmentRuntime) -> None:
    episode, tools = await begun(runtime, "multi_turn_miss_func_0")
    assert tools == ["add"]
    await act(episode, 0, ("add", {"by": 2}))
    assert texts(await act(episode, 1)) == ["Add 3 and read."]
    added = await act(episode, 2)
    assert [tool.name for tool in added.tools] == ["read"] and texts(added) == [
        "I have updated some more functions you can choose from."
    ]
    await episode.close()


async def test_words_of_the_model_are_not_evaluated(runtime: EnvironmentRuntime, tmp_path: Path) -> None:
    episode, _ = await begun(runtime, "multi_turn_base_0")
    target = str(tmp_path / "made")
    calls: list[tuple[str, dict[str, Any]]] = [
        ("open", {"file": target, "mode": "w"}),
        (f"open({target!r}, 'w').write", {}),
        ("add", {f"by=open({target!r}, 'w'), x": 1}),
        ("__init__", {}),
        ("add", {"by": f"open({target!r}, 'w')"}),
        ("read", {}),
    ]
    found = texts(await act(episode, 0, *calls))
    assert all(text.startswith("Error during execution:") for text in found[:5]) and found[5] == "10"
    assert not Path(target).exists()
    await episode.close()


async def test_unreadable_calls_pass_the_turn_to_the_user(runtime: EnvironmentRuntime) -> None:
    episode, _ = await begun(runtime, "multi_turn_base_0")
    observation = await act(episode, 0, ("add", {}), error="the arguments are not JSON")
    assert texts(observation) == ["the arguments are not JSON", "Add 3 and read."]
    assert [record.status for record in observation.calls] == ["invalid"]
    await episode.close()


async def test_too_many_steps_end_the_task_as_wrong(runtime: EnvironmentRuntime) -> None:
    episode, _ = await begun(runtime, "multi_turn_base_0")
    found = [await act(episode, number, ("read", {})) for number in range(3)]
    assert [one.status for one in found] == [None, None, "finished"] and found[-1].truncated
    assert await episode.outcome() == Outcome(0.0, False)
    # In the last turn of the user the package gives a verdict all the same.
    last, _ = await begun(runtime, "multi_turn_long_context_0")
    for number in range(3):
        await act(last, number, ("add", {"by": 1 if number == 0 else 0}))
    assert await last.outcome() == Outcome(1.0, True)
    unasked, _ = await begun(runtime, "multi_turn_base_0")
    assert await unasked.outcome() == Outcome(None, False)
    for one in (episode, last, unasked):
        await one.close()


async def test_endless_call_ends_its_own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "CALL_CPU_S", 1)
    async with environment_type(SETTINGS).open(SETTINGS, Resources()) as runtime:
        episode, _ = await begun(runtime, "multi_turn_base_0")
        with pytest.raises(DeadlineExceeded):
            await act(episode, 0, ("spin", {}))
        assert await episode.outcome() == Outcome(0.0, False)
        await episode.close()


async def test_killed_process_is_a_failure_of_infrastructure(runtime: EnvironmentRuntime) -> None:
    async with worker.open_workers() as workers, workers.connected() as one:
        await one.ask("begin", task="multi_turn_base_0")
        (pid,) = Path(f"/proc/{workers.child.pid}/task/{workers.child.pid}/children").read_text().split()
        os.kill(int(pid), signal.SIGKILL)
        with pytest.raises(worker.WorkerLost):
            await one.ask("execute", calls=[["read", {}]])
        async with workers.connected() as another:
            assert (await another.ask("begin", task="multi_turn_base_0"))["max_steps"] == 2
            with pytest.raises(worker.WorkerLost, match="no task"):
                await another.ask("begin", task="other")


async def test_resumed_episode_acts_again(runtime: EnvironmentRuntime) -> None:
    first, _ = await begun(runtime, "multi_turn_base_0")
    calls = (("add", {"by": 2}),)
    recorded = await act(first, 0, *calls)
    await first.close()
    again, _ = await begun(runtime, "multi_turn_base_0")
    made = (Call("t0.add_0", "add", {"by": 2}),)
    await again.replay(ModelTurn("", 0, "end_of_turn", calls=made), recorded, StepContext(float("inf")))
    assert texts(await act(again, 1, ("read", {}))) == ["12"]
    await again.close()


async def test_native_calls_through_service_and_client() -> None:
    texts_of_turns = []
    async with served("bfcl") as (client, _):
        settings = ENVIRONMENTS.parse(
            {"type": "service", "url": client.url, "env_type": "bfcl", "tool_calls": "native"}
        )
        rows = [row async for row in environment_type(settings).tasks(settings, "heldout", 0)]
        assert [row["id"] for row in rows][:2] == ["multi_turn_base_0", "multi_turn_miss_func_0"]
        async with environment_type(settings).open(settings, Resources()) as runtime:
            episode, tools = await begun(runtime, "multi_turn_miss_func_0", key="task_id")
            assert tools == ["add"]
            turns: list[tuple[tuple[str, dict[str, Any]], ...]] = [
                (("add", {"by": 2}), ("nope", {})), (), (), (("add", {"by": 3}), ("read", {})), ()
            ]  # fmt: skip
            for number, calls in enumerate(turns):
                observation = await act(episode, number, *calls)
                texts_of_turns.append(texts(observation))
                assert [record.id for record in observation.calls] == [
                    f"t{number}.{name}_{at}" for at, (name, _) in enumerate(calls)
                ]
                if number == 2:
                    assert [tool.name for tool in observation.tools] == ["read"]
            assert await episode.outcome() == Outcome(1.0, True) and observation.status == "finished"
            unread, _ = await begun(runtime, "multi_turn_base_0", key="task_id")
            observation = await act(unread, 0, ("add", {}), error="no JSON")
            assert [message.role for message in observation.messages] == ["tool", "user"]
            assert observation.messages[1].text == "Add 3 and read."
            for one in (episode, unread):
                await one.close()
    assert texts_of_turns[:2] == [
        ["{'value': 12}", "Error during execution: name 'nope' is not defined"],
        ["Add 3 and read."],
    ]


def test_tools_of_the_run_are_refused() -> None:
    tool = {"type": "http", "url": "http://localhost:1", "description": "d"}
    with pytest.raises((ConfigError, ValueError), match="remove environment.tools"):
        ENVIRONMENTS.parse({"type": "bfcl", "tools": {"t": tool}})
