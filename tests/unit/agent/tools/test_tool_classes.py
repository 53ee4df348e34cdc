"""Classes of users as tools: an instance per episode, its settings and state, and errors that conceal the payload."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from pydantic import ValidationError
from support.servers.own_clock import ForwardClock, until

from treadle.agent.contract import (
    Call,
    EpisodeDiverged,
    EpisodeOptions,
    ModelTurn,
    Observation,
    Outcome,
    StepContext,
    Task,
)
from treadle.agent.dialects.functions import FunctionsDialect
from treadle.agent.tools.functions import settings_of
from treadle.agent.tools.outcome import CallContext, ToolOutcome
from treadle.agent.tools.settings import ToolResources
from treadle.agent.tools.source import EpisodeTools, ToolSource
from treadle.agent.tools.user_tool import tool
from treadle.core.errors import ConfigError, ToolError
from treadle.environments.tools.calls import CallLimits, EpisodeCalls
from treadle.environments.tools.registry import TOOLS

CONTEXT = CallContext("q", (), seed=7)
SECRET = "canary-5518ab"
TASK = Task("k", "q", payload={"stock": 2, "code": SECRET})


class Shop:
    """Sell from a stock."""

    price: float = 2.5
    """Price of one piece."""
    names: list[str] = ["apple"]
    version: ClassVar[int] = 3
    closed: ClassVar[list[str]] = []

    async def setup(self, task: Task) -> None:
        self.stock = int(task.payload["stock"])
        self.code = str(task.payload["code"])

    @tool
    def sell(self, number: int) -> str:
        """Sell pieces.

        Args:
            number: How many.
        """
        if number > self.stock:
            raise ValueError(f"only {self.stock} are left for {self.code}")
        self.stock -= number
        self.names.append(str(number))
        return f"{number * self.price:g}"

    @tool(name="stock.left")
    async def left(self) -> dict[str, Any]:
        """Return what is left."""
        return {"stock": self.stock, "names": self.names}

    async def outcome(self) -> float:
        return float(self.stock == 0)

    async def close(self) -> None:
        self.closed.append("once")


class Echo:
    """Repeats."""

    resume: ClassVar[str] = "stateless"

    def __call__(self, text: str) -> str:
        """Repeat a text."""
        return text


def source_of(found: Any, name: str = "shop", **keys: Any) -> ToolSource:
    return settings_of(found).model_validate({"type": "m:Shop", **keys}).source(name, ToolResources())


@asynccontextmanager
async def episode(found: Any, **keys: Any) -> AsyncIterator[EpisodeTools]:
    async with source_of(found, **keys) as source:
        tools = await source.episode(TASK, 0)
        yield tools
        await tools.close()


async def call(tools: EpisodeTools, name: str, /, **arguments: Any) -> ToolOutcome:
    return await tools.call(name, arguments, deadline=float("inf"), context=CONTEXT)


def test_marked_methods_are_tools_in_their_order() -> None:
    source = source_of(Shop)
    assert [schema.name for schema in source.schemas] == ["sell", "stock.left"] and source.resume == "reenact"
    assert source.schemas[0].parameters["properties"] == {"number": {"type": "integer", "description": "How many."}}
    (schema,) = source_of(Echo, "repeat").schemas
    assert schema.name == "repeat" and source_of(Echo).resume == "stateless"


def test_annotated_attributes_are_settings_with_help() -> None:
    made = settings_of(Shop)
    assert made.model_fields["price"].description == "Price of one piece." and "closed" not in made.model_fields
    assert made.model_validate({"type": "m:Shop"}).version == 3
    with pytest.raises(ValidationError, match="price"):
        made.model_validate({"type": "m:Shop", "price": "free"})


def test_each_episode_has_an_instance_with_its_own_state() -> None:
    async def run() -> None:
        async with episode(Shop, price=4) as first, episode(Shop) as second:
            assert (await call(first, "sell", number=2)).text == "8"
            assert (await call(first, "stock.left")).text == '{"stock":0,"names":["apple","2"]}'
            assert (await call(second, "stock.left")).text == '{"stock":2,"names":["apple"]}'
            assert [await one.outcome() for one in (first, second)] == [Outcome(1.0), Outcome(0.0)]
        async with source_of(Shop) as source:
            first, second = [await source.episode(TASK, 0) for _ in range(2)]
            await call(first, "sell", number=1)
            assert (await call(second, "stock.left")).text == '{"stock":2,"names":["apple"]}'

    Shop.closed.clear()
    asyncio.run(run())
    assert Shop.closed == ["once", "once"]


class Steps:
    """Counts."""

    done: ClassVar[list[str]] = []

    async def __call__(self, name: str) -> None:
        """Count."""
        for _ in range(3):
            await asyncio.sleep(0)
            self.done.append(name)


def test_calls_of_a_turn_run_one_after_the_other_in_their_order() -> None:
    async def run() -> None:
        async with episode(Steps) as tools:
            await asyncio.gather(*(call(tools, "shop", name=name) for name in "abc"))

    Steps.done.clear()
    asyncio.run(run())
    assert "".join(Steps.done) == "aaabbbccc"


def test_payload_is_concealed_in_errors() -> None:
    async def run() -> ToolOutcome:
        async with episode(Shop) as tools:
            return await call(tools, "sell", number=9)

    assert asyncio.run(run()).text == "ValueError: only 2 are left for [payload]"


class Failing:
    """Fails if it is told to."""

    place: str = ""
    kind: str = "value"

    def fail(self, place: str) -> None:
        if self.place == place:
            raise ToolError(f"down: {SECRET}") if self.kind == "tool" else ValueError(f"bad: {SECRET}")

    async def setup(self, task: Task) -> None:
        self.fail("setup")

    def __call__(self) -> str:
        """Do."""
        self.fail("call")
        return ""

    async def outcome(self) -> float:
        self.fail("outcome")
        return 1.0

    async def close(self) -> None:
        self.fail("close")


@pytest.mark.parametrize("kind", ["value", "tool"])
@pytest.mark.parametrize("place", ["setup", "outcome", "close", "call"])
def test_errors_outside_of_calls_leave_the_rollout_pending(place: str, kind: str) -> None:
    async def run() -> None:
        async with episode(Failing, place=place, kind=kind) as tools:
            found = await call(tools, "shop")
            assert (found.status, found.text) == (
                ("error", "ValueError: bad: [payload]") if place == "call" else ("ok", "")
            )
            await tools.outcome()

    if (place, kind) == ("call", "value"):
        asyncio.run(run())
        return
    with pytest.raises(ToolError, match=r"\[payload\]") as raised:
        asyncio.run(run())
    assert SECRET not in str(raised.value) and raised.value.retryable is (kind == "tool")
    assert place in str(raised.value) or kind == "tool"


class Stuck:
    """Waits."""

    resume: ClassVar[str] = "restart"
    release: ClassVar[threading.Event] = threading.Event()
    began: ClassVar[list[str]] = []

    @tool
    def wait(self, name: str) -> str:
        """Wait."""
        self.began.append(name)
        self.release.wait()
        return name

    async def outcome(self) -> float:
        await asyncio.Event().wait()
        return 1.0


@pytest.fixture
def release() -> Iterator[threading.Event]:
    Stuck.release.clear()
    Stuck.began.clear()
    yield Stuck.release
    Stuck.release.set()


def test_no_call_runs_while_one_past_its_time_does(release: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        clock = ForwardClock(monkeypatch)
        async with episode(Stuck, time_limit_s=60.0) as tools:
            calls = asyncio.gather(call(tools, "wait", name="a"), call(tools, "wait", name="b"))
            await until(lambda: Stuck.began != [])
            await clock.pass_until_done(calls)
            found = await calls
            assert [one.status for one in found] == ["timeout", "timeout"] and Stuck.began == ["a"]
            outcome = asyncio.ensure_future(tools.outcome())
            await clock.pass_until_done(outcome)
            with pytest.raises(ToolError, match=r"Stuck.outcome did not return in time_limit_s = 60 s"):
                await outcome

    asyncio.run(run())


def test_what_cannot_be_a_tool_is_refused_in_one_line() -> None:
    class Unmarked:
        def run(self) -> None: ...

    class Needy:
        def __init__(self, key: str) -> None: ...

        def __call__(self) -> None:
            """Do."""

    class Blocking:
        def setup(self, task: Task) -> None: ...

        def __call__(self) -> None:
            """Do."""

    class Unsure:
        resume = "maybe"

        def __call__(self) -> None:
            """Do."""

    class Taken:
        max_calls: int = 3

        def __call__(self) -> None:
            """Do."""

    class Unset:
        key: str

        def __call__(self) -> None:
            """Do."""

    class Annotated:
        resume: str = "restart"

        def __call__(self) -> None:
            """Do."""

    class Twice:
        @tool
        def one(self) -> None:
            """Do."""

        @tool(name="one")
        def two(self) -> None:
            """Do."""

    class Static:
        @tool
        @staticmethod
        def one() -> None:
            """Do."""

    refusals: Mapping[type, str] = {
        Unmarked: "mark its methods with `@tool`",
        Needy: "needs arguments",
        Blocking: "Blocking.setup must be written with `async def`",
        Unsure: "'maybe'; use stateless, reenact, restart",
        Taken: "Taken.max_calls",
        Unset: "Unset.key is a setting and needs a default value",
        Annotated: "as ClassVar",
        Twice: "two tools called 'one'",
        Static: "no plain method",
    }
    for found, said in refusals.items():
        with pytest.raises(ConfigError, match=said) as raised:
            settings_of(found)
        assert "\n" not in str(raised.value)


def turn(number: int, *calls: Call) -> ModelTurn:
    return ModelTurn("", number, "end_of_turn", calls=calls)


def test_resumed_episode_makes_the_recorded_calls_again() -> None:
    step = StepContext(deadline=float("inf"))
    first = turn(0, Call("t0.sell_0", "sell", {"number": 1}), Call("t0.sell_1", "sell", {"number": 5}))
    second = turn(1, Call("t1.left_0", "stock.left", {}))

    async def play(*turns: ModelTurn, recorded: Sequence[Observation] = (), found: type = Shop) -> list[Observation]:
        async with source_of(found) as source:
            calls = EpisodeCalls({"shop": source}, FunctionsDialect())
            await calls.begin(TASK, EpisodeOptions(), CallLimits(lambda entry: None))
            for made, seen in zip(turns, recorded, strict=False):
                await calls.replay(made, seen, step)
            observations = [await calls.run(made, step) for made in turns[len(recorded) :]]
            await calls.close()
            return observations

    whole = asyncio.run(play(first, second))
    assert [call.status for call in whole[0].calls] == ["ok", "error"]
    (resumed,) = asyncio.run(play(first, second, recorded=whole[:1]))
    assert resumed.messages == whole[1].messages and '"stock":1' in resumed.messages[0].text
    other = replace(whole[0], calls=(replace(whole[0].calls[0], text="9"), *whole[0].calls[1:]))
    with pytest.raises(EpisodeDiverged, match="another outcome"):
        asyncio.run(play(first, second, recorded=[other]))
    restarting = type("Restarting", (Shop,), {"resume": "restart"})
    with pytest.raises(EpisodeDiverged, match="the state of sell was lost"):
        asyncio.run(play(first, second, recorded=whole[:1], found=restarting))


def test_type_without_a_source_is_refused_when_the_configuration_is_read() -> None:
    with pytest.raises(ValueError, match=r"ToolSettings has no method source\(name, resources\)"):
        TOOLS.parse({"type": "treadle.agent.tools.settings:ToolSettings"})
