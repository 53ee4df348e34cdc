"""Functions of users as tools: schemas from annotations and docstrings, values, errors, limits and refusals."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import enum
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from support.servers.own_clock import ForwardClock, until

from treadle.agent.contract import Task
from treadle.agent.tools.functions import settings_of
from treadle.agent.tools.outcome import CallContext, ToolOutcome
from treadle.agent.tools.settings import ToolResources
from treadle.agent.tools.source import ToolSource
from treadle.agent.tools.user_tool import tool
from treadle.core.errors import ConfigError, ToolError
from treadle.core.work_clock import timed_work, work_clock
from treadle.environments.tools.registry import TOOLS

CONTEXT = CallContext("q", (), seed=7)
TASK = Task("k", "q")


class Unit(enum.Enum):
    celsius = "c"
    fahrenheit = "f"


@dataclasses.dataclass
class Place:
    lat: float
    lon: float = 0.0


class Wish(BaseModel):
    near: list[Place] = []


async def weather(
    city: str,
    days: Annotated[int, Field(ge=1, le=7)] = 3,
    *,
    unit: Unit = Unit.celsius,
    schema: Literal["short", "long"] = "short",
    since: datetime.date | None = None,
    wish: Wish | None = None,
    context: CallContext,
) -> dict[str, Any]:
    """Return the weather
    of a city.

    Not shown to the model.

    Args:
        city: Name of
            the city.
        days: Days ahead.
    """
    return {"city": city, "days": days, "unit": unit, "schema": schema, "since": since, "seed": context.seed}


def source_of(function: Any, name: str = "weather", **keys: Any) -> ToolSource:
    settings = settings_of(function).model_validate({"type": "tools.py:weather", **keys})
    return settings.source(name, ToolResources())


@asynccontextmanager
async def opened(function: Any, name: str = "weather", **keys: Any) -> AsyncIterator[Callable[..., Any]]:
    """Yield a function that makes one call of a source in an episode."""
    async with source_of(function, name, **keys) as source:
        tools = await source.episode(TASK, 0)

        async def call(context: CallContext = CONTEXT, deadline: float = float("inf"), **arguments: Any) -> ToolOutcome:
            return await tools.call(name, arguments, deadline=deadline, context=context)

        yield call


def outcome(function: Any, **arguments: Any) -> ToolOutcome:
    async def run() -> ToolOutcome:
        async with opened(function) as call:
            found: ToolOutcome = await call(**arguments)
            return found

    return asyncio.run(run())


def test_schema_is_derived_from_annotations_and_docstring() -> None:
    (schema,) = source_of(weather, "sky.weather-2").schemas
    assert (schema.name, schema.description) == ("sky.weather-2", "Return the weather of a city.")
    shown = schema.parameters["properties"]
    assert schema.parameters["required"] == ["city"] and "context" not in shown
    assert shown["city"] == {"type": "string", "description": "Name of the city."}
    assert shown["days"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 7,
        "default": 3,
        "description": "Days ahead.",
    }
    assert shown["schema"] == {"enum": ["short", "long"], "type": "string", "default": "short"}
    assert schema.argument_error({"city": "Oslo", "unit": "f", "wish": {"near": [{"lat": 1}]}}) == ""
    assert schema.argument_error({"city": "Oslo", "unit": "kelvin"}).startswith("unit: ")
    assert "nope" in schema.argument_error({"city": "Oslo", "nope": 1})


@pytest.mark.parametrize(
    "doc",
    [
        "Add.\n\nArgs:\n    a: The first.\n\nReturns:\n    The sum.",
        "Add.\n\nParameters\n----------\na : int\n    The first.\n\nReturns\n-------\nint\n    The sum.",
        "Add.\n\n:param a: The first.\n:returns: The sum.",
    ],
    ids=["google", "numpy", "rest"],
)
def test_styles_of_docstrings(doc: str) -> None:
    def add(a: int) -> int:
        return a

    add.__doc__ = doc
    (schema,) = source_of(add).schemas
    assert schema.description == "Add."
    assert schema.parameters["properties"]["a"] == {"type": "integer", "description": "The first."}


def test_arguments_are_converted_and_values_are_json() -> None:
    found = outcome(weather, city="Köln", unit="f", since="2026-01-02")
    assert found.status == "ok"
    assert found.text == '{"city":"Köln","days":3,"unit":"f","schema":"short","since":"2026-01-02","seed":7}'


def test_arguments_that_cannot_be_converted_are_invalid() -> None:
    found = outcome(weather, city=1, days="x", wish={"near": [{"lat": "x"}]})
    assert found.status == "invalid" and "days: " in found.text and "wish.near.0.lat: " in found.text
    assert "pydantic" not in found.text and "\n" not in found.text


def test_mutable_defaults_are_not_shared_between_calls() -> None:
    def note(text: str, seen: list[str] = []) -> list[str]:  # noqa: B006
        """Note."""
        seen.append(text)
        return seen

    assert [outcome(note, text="a").text for _ in range(2)] == ['["a"]', '["a"]']


@pytest.mark.parametrize(
    ("value", "text"),
    [("plain\n", "plain\n"), (None, "null"), ([1, float("nan")], '[1,"NaN"]'), (Place(1), '{"lat":1,"lon":0.0}')],
)
def test_text_is_returned_as_it_is_and_all_else_as_json(value: Any, text: str) -> None:
    def give() -> Any:
        """Give."""
        return value

    found = outcome(give)
    assert (found.status, found.text) == ("ok", text)


def test_lone_surrogates_are_replaced_and_long_texts_cut() -> None:
    def give() -> str:
        """Give."""
        return "a\ud800" + 100 * "b"

    async def run() -> ToolOutcome:
        async with opened(give, max_output_chars=60) as call:
            found: ToolOutcome = await call()
            return found

    found = asyncio.run(run())
    assert found.text.startswith("a\ufffd") and len(found.text) == 60 and "characters left out" in found.text


def test_value_that_is_no_json_is_a_wrong_setup() -> None:
    def give() -> Any:
        """Give."""
        return object()

    with pytest.raises(ToolError, match="weather returned a object that is not JSON"):
        outcome(give)


def failing(error: BaseException) -> tuple[Callable[[], str], Callable[[], Any]]:
    def sync() -> str:
        """Fail."""
        raise error

    async def later() -> str:
        """Fail."""
        raise error

    return sync, later


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("Oslo"), "KeyError: 'Oslo'"),
        (ValueError("two\nlines\x1b[2J"), r"ValueError: two lines\x1b[2J"),
        (TimeoutError("its own"), "TimeoutError: its own"),
        (StopIteration(), "StopIteration"),
        (SystemExit(3), "SystemExit: 3"),
        (ValueError(f"no {__file__}, see http://a.b/c/d and /no-such-root/x"), None),
    ],
)
@pytest.mark.parametrize("kind", [0, 1], ids=["sync", "async"])
def test_errors_are_outcomes_in_one_line(error: BaseException, said: str | None, kind: int) -> None:
    if kind and isinstance(error, StopIteration):
        said = "RuntimeError: coroutine raised StopIteration"  # so does Python
    found = outcome(failing(error)[kind])
    expected = said or f"ValueError: no {Path(__file__).name}, see http://a.b/c/d and /no-such-root/x"
    assert (found.status, found.text) == ("error", expected)
    assert found.note.startswith(f"{Path(__file__).name}, line ") or "coroutine raised" in found.text


@pytest.mark.parametrize("kind", [0, 1], ids=["sync", "async"])
def test_tool_errors_leave_work_pending(kind: int) -> None:
    with pytest.raises(ToolError, match="the database is down") as raised:
        outcome(failing(ToolError("the database is down"))[kind])
    assert raised.value.retryable


@pytest.fixture
def release() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_calls_past_their_time_end_with_timeout(release: threading.Event) -> None:
    def sync() -> str:
        """Wait."""
        release.wait()
        return "late"

    async def later() -> str:
        """Wait."""
        await asyncio.Event().wait()
        return "late"

    async def run(function: Any) -> tuple[ToolOutcome, ...]:
        with timed_work():
            async with opened(function, time_limit_s=0.02) as call, opened(function) as slow:
                now = work_clock().time()
                in_rl = dataclasses.replace(CONTEXT, budget_s=0.02)
                return await call(), await slow(deadline=now + 0.02), await slow(deadline=now, context=in_rl)

    for function in (sync, later):
        assert [found.status for found in asyncio.run(run(function))] == ["timeout"] * 3


def test_threads_of_calls_past_their_time_are_bounded(
    release: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = list[int]()

    def wait(number: int) -> str:
        """Wait."""
        began.append(number)
        if number < 2:
            release.wait()
        return "done"

    async def run() -> None:
        clock = ForwardClock(monkeypatch)
        async with opened(wait, time_limit_s=60.0, num_threads=2) as call:
            held = asyncio.gather(*(call(number=number) for number in range(2)))
            await until(lambda: len(began) == 2)
            clock.pass_(61.0)
            assert [one.status for one in await held] == ["timeout", "timeout"]
            with pytest.raises(ToolError, match="2 calls that ran out of time") as raised:
                await call(number=2)
            assert raised.value.retryable
            release.set()
            while True:  # until the event loop has heard of both threads
                with_thread = await asyncio.gather(call(number=2), return_exceptions=True)
                if isinstance(with_thread[0], ToolOutcome):
                    break
            assert with_thread[0].text == "done"

    asyncio.run(run())


def test_waiting_for_a_thread_is_not_the_agents_time(release: threading.Event) -> None:
    started = threading.Semaphore(0)

    def wait(number: int) -> str:
        """Wait."""
        started.release()
        if not number:
            release.wait()
        return str(number)

    async def run() -> list[ToolOutcome]:
        with timed_work() as clock:
            async with opened(wait, num_threads=1) as call:
                first = asyncio.create_task(call(number=0))
                await asyncio.to_thread(started.acquire)
                second = asyncio.create_task(call(number=1))
                await asyncio.sleep(0)
                assert clock.loop_time(0.0) is None, "the clock is not held"
                release.set()
                return await asyncio.gather(first, second)

    assert [found.text for found in asyncio.run(run())] == ["0", "1"]


def test_what_cannot_be_a_tool_is_refused_in_one_line() -> None:
    def no_annotation(a) -> None:  # type: ignore[no-untyped-def]
        """Do."""

    def many(*parts: str) -> None:
        """Do."""

    def more(**parts: str) -> None:
        """Do."""

    def undocumented(a: int) -> None: ...

    def opaque(a: threading.Event) -> None:
        """Do."""

    def unresolved(a: Missing) -> None:  # type: ignore[name-defined] # noqa: F821
        """Do."""

    def renamed(state: CallContext) -> None:
        """Do."""

    def yielding() -> Iterator[int]:
        """Do."""
        yield 1

    def field(a: int = Field(3)) -> None:
        """Do."""

    refusals: Mapping[Any, str] = {
        no_annotation: "annotate the parameter 'a'",
        many: r"\*parts",
        more: r"\*\*parts",
        undocumented: "no docstring: write what it does",
        opaque: "'a' is of type threading.Event, which has no JSON schema",
        unresolved: "Missing",
        renamed: "name the parameter 'state' `context`",
        yielding: "yields",
        field: "Annotated",
        (lambda a: a): "is a lambda",
        "text": "is no tool",
    }
    for found, said in refusals.items():
        with pytest.raises(ConfigError, match=said) as raised:
            settings_of(found)
        assert "\n" not in str(raised.value)
    with pytest.raises(ConfigError, match="a tool cannot be named 'my tool'"):
        source_of(weather, "my tool")


def test_file_is_read_when_the_configuration_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_tools.py").write_text(
        "from __future__ import annotations\n\n\ndef add(a: int, b: int = 1) -> int:\n"
        '    """Add."""\n    return a + b\n\n\ndef bare(a: int): ...\n'
    )
    settings = TOOLS.parse({"type": "my_tools.py:add", "max_calls": 2, "time_limit_s": 5})
    assert settings.code_file == tmp_path / "my_tools.py" and len(settings.code_sha256) == 64
    assert TOOLS.parse(settings.model_dump()) == settings
    assert settings.source("add", ToolResources()).schemas[0].parameters["required"] == ["a"]
    for data, said in (
        ({"type": "my_tools.py:bare"}, "bare has no docstring"),
        ({"type": "my_tools.py:sub"}, "there: add, bare"),
        ({"type": "my_tools.py:add", "timeout": 3}, "unknown config key 'timeout'; did you mean 'time_limit_s'"),
        ({"type": "http", "url": "http://a/", "methd": "GET"}, "unknown config key 'methd'; did you mean 'method'"),
        ({"type": "workspace", "sandbox": {"packges": []}}, "'sandbox.packges'; did you mean 'packages'"),
    ):
        with pytest.raises(ValueError, match=said):
            TOOLS.parse(data)


def test_version_of_a_function_is_its_marks() -> None:
    @tool(version=4)
    def marked() -> str:
        """Do."""
        return ""

    assert settings_of(marked).model_validate({"type": "m:marked"}).version == 4
    assert settings_of(weather).model_validate({"type": "m:weather"}).version == 1
