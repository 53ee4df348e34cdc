"""A stage that counts, noting what it works out, and one that doubles its numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from treadle.core.config import Operational, Section
from treadle.core.runs.address import Address
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance, Stage, StageContext
from treadle.core.tables import Table

NUMBERS = Table("numbers", 1, ("number",), pa.schema([pa.field("number", pa.int64(), nullable=False)]), "Numbers.")
TIMES = Table("times", 1, ("number",), pa.schema([pa.field("number", pa.int64(), nullable=False)]), "Times.")


class Settings(Section):
    count: int = 3
    url: Operational[str] = "a"


def count(context: StageContext) -> Mapping[str, Any]:
    """Compute each number once, whatever happens to the attempts."""
    for number in range(context.settings.count):
        owner = f"n{number}"
        if not context.journal.is_finished(owner):
            CALLS.append(number)
            context.journal.finish(owner, str(number).encode())
    for number in range(context.settings.count):
        context.write("numbers", [{"number": int(context.journal.finished(f"n{number}"))}])
    context.write_telemetry("times", [{"number": context.attempt}])
    return {"count": context.settings.count}


def double(context: StageContext) -> Mapping[str, Any]:
    numbers = [row["number"] for rows in context.inputs["numbers"] for row in rows.rows()]
    context.write("doubles", [{"number": 2 * number} for number in numbers])
    return {}


DOUBLES = Table("doubles", 1, ("number",), NUMBERS.schema, "Doubles.")
CALLS: list[int] = []
"""The numbers that `count` worked out, in their order."""
COUNT = Stage(name="count", version=1, settings=Settings, produces=(NUMBERS,), telemetry=(TIMES,), run=count)
DOUBLE = Stage(
    name="double", version=1, settings=Section, consumes={"numbers": "numbers"}, produces=(DOUBLES,), run=double
)


@pytest.fixture(autouse=True)
def no_calls() -> None:
    """Clear the calls before every test of a file that imports this."""
    CALLS.clear()


def counting(body: Callable[[StageContext], Mapping[str, Any]] = count, **settings: Any) -> Instance:
    """Return the instance `1/count`."""
    return Instance(address=Address(1, "count"), stage=replace(COUNT, run=body), settings=Settings(**settings))


DOUBLING = Instance(
    address=Address(1, "double"), stage=DOUBLE, settings=Section(), inputs={"numbers": (Address(1, "count"),)}
)


def numbers_of(run: Run, address: str = "1/count", kind: str = "numbers") -> list[int]:
    """Return the numbers in the current result."""
    record = run.record(Address.parse(address))
    assert record is not None
    return [row["number"] for row in run.rows(record.outputs[kind]).rows()]
