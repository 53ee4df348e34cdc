"""Read the seconds of a rollout from its row of telemetry."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from treadle.environments.rollouts.measured import is_measured
from treadle.tasks.page.sources import Row


class Times(NamedTuple):
    """Seconds of one rollout."""

    total: float
    model: float
    """Seconds waiting for completions."""
    tools: float
    by_tool: Mapping[str, tuple[int, float]] = MappingProxyType({})
    """Tool -> number of calls that ran, and their seconds in total."""


def times_of_row(row: Row) -> Times | None:
    """Return the seconds in a telemetry row; None if the rollout was resumed, or an older version wrote the row."""
    if "seconds_by_tool" not in row:
        return None
    by_tool = {one["tool"]: (one["executed"], one["seconds"]) for one in row["seconds_by_tool"]}
    times = Times(row["seconds"], row["model_seconds"], row["tool_seconds"], by_tool)
    return times if is_measured(times.total, times.model, times.tools) else None
