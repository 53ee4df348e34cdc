"""Find the figures of a finished stage, with names and steps as trackers take them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from treadle.core.runs.address import Address
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run


@dataclass(frozen=True, slots=True)
class TrackedFigures:
    """Figures of one finished stage instance.

    Attributes:
        address: The instance, such as `1/scores@base`.
        step: Number of the phase for instances of a phase, else of the iteration; both count from 1.
        values: Name, such as `scores/base/num_right`, -> value; all are finite.
    """

    address: str
    step: int
    values: dict[str, float]


def tracked_figures(record: StageRecord, run: Run) -> TrackedFigures:
    """Return the numbers of a stage's metrics and, for `report`, the figures of each model and data set.

    Names begin with stage and model. Phases count again in each iteration, so their names begin with the iteration from
    the second on.
    """
    address = Address.parse(record.address)
    qualifier = address.qualifier or ""
    phase = re.fullmatch(r"phase-(\d+)", qualifier)
    parts = [address.stage] if phase or not qualifier else [address.stage, qualifier]
    if phase and address.iteration > 1:
        parts.insert(0, f"iteration-{address.iteration}")
    found = [(parts + names, value) for names, value in _numbers(record.metrics)]
    if (summary := record.outputs.get("summary")) is not None:
        found += [(parts + names, value) for names, value in _scores(run, summary)]
    values = {"/".join(map(_name, names)): float(value) for names, value in found if math.isfinite(value)}
    return TrackedFigures(record.address, int(phase[1]) if phase else address.iteration, values)


def _numbers(metrics: Mapping[str, Any]) -> Iterator[tuple[list[str], float]]:
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            yield from (([name, *names], number) for names, number in _numbers(value))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield [name], value


def _scores(run: Run, summary: Any) -> Iterator[tuple[list[str], float]]:
    from treadle.eval.metrics import is_figure

    for row in run.rows(summary).rows():
        if is_figure(row["figure"]) and row["value"] is not None:
            yield [row["model"], row["dataset"], row["figure"]], row["value"]


def _name(part: str) -> str:
    """Return a part of a name with the characters that all trackers accept."""
    return re.sub(r"[^A-Za-z0-9_. -]+", "_", part)
