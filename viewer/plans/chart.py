"""Lay out the calls of a planning agent as bars over time, one row per call or task, with lines that show waiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treadle.environments.planning.figures import Batch, CallTimes, call_times

WIDTH = 1000
"""Width of the chart in its own units; it is stretched to the page."""
ROW_HEIGHT = 22
"""Height of a row in pixels."""
_MIN_BAR = 4.0
_MAX_ROWS = 200
_MAX_ARGUMENT_CHARS = 160


@dataclass(frozen=True, slots=True)
class Bar:
    """Row of the chart.

    Attributes:
        turn: Number of the turn, from 1.
        task: Id of the task; empty for a call without one.
        tool: Tool that was called; empty for a task of reasoning.
        argument: Text of the call, or the description of the task.
        status: Status of the call; empty for a task of reasoning.
        note: Note of the call in the ledger.
        start: Left end of the bar in units of the chart.
        width: Width of the bar; 0 for a call or task that did not run.
        seconds: Time that the call took; None if it is unknown.
    """

    turn: int
    task: str
    tool: str
    argument: str
    status: str
    note: str
    start: float
    width: float
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Edge:
    """Line from the end of one row's bar to the beginning of a bar that waits for it, in units of the chart."""

    x1: float
    y1: float
    x2: float
    y2: float


@dataclass(frozen=True, slots=True)
class PlanChart:
    """Chart of one trajectory.

    Attributes:
        num_left_out: Number of rows beyond the first 200, which are not shown.
        has_times: Whether times were measured; otherwise each call takes one unit of time.
        times: Sums of the measured times; None if no times were measured.
    """

    bars: Sequence[Bar]
    edges: Sequence[Edge]
    num_left_out: int
    has_times: bool
    times: CallTimes | None

    @property
    def height(self) -> int:
        """Height of the chart in pixels."""
        return ROW_HEIGHT * len(self.bars)


@dataclass(slots=True)
class _Placed:
    """Row before it is scaled to the chart; `start` and `seconds` are in seconds, or in calls if times are unknown."""

    id: str
    turn: int
    task: str
    tool: str
    argument: str
    status: str
    note: str
    start: float
    seconds: float
    depends_on: Sequence[str]
    is_timed: bool


def plan_chart(batches: Sequence[Batch], times: Sequence[Mapping[str, Any]]) -> PlanChart | None:
    """Return the chart of a trajectory; None without calls. `times` is empty if no times were measured.

    Turns are drawn one after another, without the time that the model takes between them.
    """
    if not any(batch.stored for batch in batches):
        return None
    by_id = {one["id"]: (one["started_s"], one["seconds"]) for one in times}
    has_times = any(call["id"] in by_id for batch in batches for call in batch.stored if call.get("id"))
    placed: list[_Placed] = []
    offset = 0.0
    for batch in batches:
        rows = _rows(batch, by_id if has_times else _units(batch), offset)
        placed += rows
        offset = max([offset, *(row.start + row.seconds for row in rows)])
    shown = placed[:_MAX_ROWS]
    scale = WIDTH / offset if offset else 0.0
    bars = [_bar(row, scale, has_times) for row in shown]
    return PlanChart(
        bars,
        _edges(shown, bars),
        len(placed) - len(shown),
        has_times,
        call_times(batches, times) if has_times else None,
    )


def _units(batch: Batch) -> dict[str, tuple[float, float]]:
    """Return start and duration of each call if no times were measured: one unit, after the calls that it waits for."""
    level: dict[str, int] = {}
    for _ in batch.depends_on:
        for id, others in batch.depends_on.items():
            level[id] = max((level.get(other, 0) + 1 for other in others), default=0)
    ran = {call["id"] for call in batch.executed}
    return {id: (float(place), 1.0) for id, place in level.items() if id in ran}


def _rows(batch: Batch, times: Mapping[str, tuple[float, float]], offset: float) -> list[_Placed]:
    stored = {call.get("id", ""): call for call in batch.stored}
    calls = {one.call.id: one for one in batch.calls}
    rows = []
    ends: dict[str, float] = {}
    nodes = {} if batch.plan is None else batch.plan.by_id
    for id, others in batch.depends_on.items():
        start, seconds = times.get(id, (max((ends.get(other, 0.0) for other in others), default=0.0), 0.0))
        ends[id] = start + seconds
        if id in calls:
            call, task = stored.get(id, {}), calls[id].task
            rows.append(
                _Placed(
                    id, batch.turn, task, calls[id].call.tool, call.get("argument", ""), call.get("status", "not run"),
                    call.get("note", ""), offset + start, seconds, others, id in times,
                )
            )  # fmt: skip
        elif (node := nodes.get(id.removeprefix("="))) is not None:
            rows.append(
                _Placed(id, batch.turn, node.id, "", node.description, "", "", offset + start, 0.0, others, False)
            )
    return rows


def _bar(row: _Placed, scale: float, has_times: bool) -> Bar:
    width = max(row.seconds * scale, _MIN_BAR) if row.is_timed else 0.0
    return Bar(
        row.turn + 1, row.task, row.tool, row.argument[:_MAX_ARGUMENT_CHARS], row.status, row.note,
        round(min(row.start * scale, WIDTH - width), 1), round(width, 1),
        row.seconds if has_times and row.is_timed else None,
    )  # fmt: skip


def _edges(rows: Sequence[_Placed], bars: Sequence[Bar]) -> list[Edge]:
    places = {row.id: place for place, row in enumerate(rows)}
    edges = []
    for place, row in enumerate(rows):
        for other in row.depends_on:
            if (before := places.get(other)) is not None:
                x1, y1 = bars[before].start + bars[before].width, (before + 0.5) * ROW_HEIGHT
                edges.append(Edge(round(x1, 1), y1, bars[place].start, (place + 0.5) * ROW_HEIGHT))
    return edges
