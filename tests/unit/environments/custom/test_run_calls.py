"""Environment classes whose calls are run by the tools of `environment.tools`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.tool_templates import call_text

from treadle.agent.contract import EpisodeDiverged, EpisodeOptions, Outcome, StepContext, Task
from treadle.agent.dialects.functions import FunctionsDialect
from treadle.agent.tools.outcome import CallContext, ToolOutcome
from treadle.agent.tools.schema import ToolSchema
from treadle.agent.tools.settings import ToolSettings
from treadle.agent.tools.source import ToolResume
from treadle.api import Done, Environment, Message, ModelTurn
from treadle.core.errors import ConfigError
from treadle.environments.custom.episode import CustomEpisode
from treadle.environments.custom.kind import CustomType
from treadle.environments.tools.calls import EpisodeCalls

CONTEXT = StepContext(math.inf)


class Desk(Environment):
    """Uses a tool, and answers one call itself."""

    dialect = FunctionsDialect()
    schemas = (ToolSchema("finish", "End the task."),)

    async def step(self, turn: ModelTurn) -> list[Message] | Done:
        if any(call.tool == "finish" for call in turn.calls):
            return Done("bye", reward=1.0)
        return await self.run_calls(turn) or Done()


class Counter:
    """Source of a tool that counts its calls."""

    def __init__(self, resume: ToolResume) -> None:
        self.resume = resume
        self.schemas: Sequence[ToolSchema] = (ToolSchema("count", "Count."),)
        self.made = 0

    async def __aenter__(self) -> Counter:
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    def facts(self) -> dict[str, str]:
        return {}

    async def episode(self, task: Task, seed: int) -> Counter:
        return self

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, deadline: float, context: CallContext
    ) -> ToolOutcome:
        self.made += 1
        return ToolOutcome("ok", str(self.made), seconds=self.made / 10)

    async def outcome(self) -> Outcome | None:
        return None

    async def close(self) -> None: ...


def episode_of(source: Counter, max_calls: int | None = None) -> CustomEpisode:
    kind = CustomType(Desk)
    settings = kind.settings.model_validate({"type": "x:Desk"})
    settings = settings.model_copy(update={"tools": {"count": ToolSettings(type="x", max_calls=max_calls)}})
    calls = EpisodeCalls({"count": source}, Desk.dialect)
    return CustomEpisode(Desk(), settings, None, {}, calls)


def turn_of(number: int, *names: str) -> ModelTurn:
    text = "\n".join(call_text("hermes", name, {}) for name in names)
    return Desk.dialect.read(text, number, "end_of_turn")


async def test_calls_are_in_the_ledger_with_their_times() -> None:
    episode = episode_of(Counter("stateless"))
    initial = await episode.reset(Task("q", "Count."), EpisodeOptions())
    assert [tool.name for tool in initial.tools] == ["count", "finish"]
    observation = await episode.step(turn_of(0, "count", "count"), CONTEXT)
    assert [(call.id, call.text, call.seconds) for call in observation.calls] == [
        ("t0.count_0", "1", 0.1),
        ("t0.count_1", "2", 0.2),
    ]
    assert [(message.role, message.text, message.call) for message in observation.messages] == [
        ("tool", "1", "t0.count_0"),
        ("tool", "2", "t0.count_1"),
    ]
    done = await episode.step(turn_of(1, "finish"), CONTEXT)
    assert (done.status, done.reward, [call.tool for call in done.calls]) == ("finished", 1.0, ["finish"])


class Selling(Counter):
    """Source that knows how good its state is."""

    async def outcome(self) -> Outcome | None:
        return Outcome(float(self.made))


async def test_outcome_of_the_tools_is_that_of_a_class_without_one() -> None:
    episode = episode_of(Selling("stateless"))
    await episode.reset(Task("q", "Count."), EpisodeOptions())
    await episode.step(turn_of(0, "count"), CONTEXT)
    assert await episode.outcome() == Outcome(1.0)


async def test_calls_over_a_limit_are_refused() -> None:
    episode = episode_of(Counter("stateless"), max_calls=1)
    await episode.reset(Task("q", "Count."), EpisodeOptions())
    observation = await episode.step(turn_of(0, "count", "count"), CONTEXT)
    assert [call.status for call in observation.calls] == ["ok", "refused"]
    assert observation.status is None


async def test_resumed_episode_gets_recorded_results_of_tools_without_state() -> None:
    source = Counter("stateless")
    first = episode_of(source)
    await first.reset(Task("q", "Count."), EpisodeOptions())
    turn = turn_of(0, "count", "count")
    observation = await first.step(turn, CONTEXT)
    again = episode_of(source)
    await again.reset(Task("q", "Count."), EpisodeOptions())
    await again.replay(turn, observation, CONTEXT)
    assert source.made == 2


async def test_tools_with_state_are_called_again_and_compared() -> None:
    first = episode_of(Counter("reenact"))
    await first.reset(Task("q", "Count."), EpisodeOptions())
    turn = turn_of(0, "count")
    observation = await first.step(turn, CONTEXT)
    source = Counter("reenact")
    again = episode_of(source)
    await again.reset(Task("q", "Count."), EpisodeOptions())
    await again.replay(turn, observation, CONTEXT)
    assert source.made == 1
    other = replace(observation, calls=tuple(replace(call, text="9") for call in observation.calls))
    with pytest.raises(EpisodeDiverged):
        await again.replay(turn_of(1, "count"), other, CONTEXT)


async def test_tool_whose_state_is_gone_begins_again() -> None:
    first = episode_of(Counter("restart"))
    await first.reset(Task("q", "Count."), EpisodeOptions())
    observation = await first.step(turn_of(0, "count"), CONTEXT)
    again = episode_of(Counter("restart"))
    await again.reset(Task("q", "Count."), EpisodeOptions())
    with pytest.raises(EpisodeDiverged, match="state of count was lost"):
        await again.replay(turn_of(0, "count"), observation, CONTEXT)


async def test_two_tools_of_one_name_are_refused() -> None:
    class Twice(Desk):
        schemas = (ToolSchema("count", "Count otherwise."),)

    kind = CustomType(Twice)
    settings = kind.settings.model_validate({"type": "x:Twice"})
    calls = EpisodeCalls({"count": Counter("stateless")}, Desk.dialect)
    episode = CustomEpisode(Twice(), settings, None, {}, calls)
    with pytest.raises(ConfigError, match="both have a tool named 'count'"):
        await episode.reset(Task("q", "Count."), EpisodeOptions())
