"""Select questions as the original program of ET-Agent does; used only by differential tests.

Differences from `rl/selection/methods`: variance instead of the standard deviation; every pair of questions compared;
crowding over all questions, repetitions included, with ties in sorting order; the filter for mixed outcomes comes last,
so that fewer questions remain than requested; distances only if a front was cut; one source counts as math in the
filter and as qa in the rows.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MATH_IN_FILTER = frozenset({"openr1", "numina-tir", "numina-cot", "aime", "dapo", "still"})
MATH_IN_ROWS = MATH_IN_FILTER - {"still"}
MIXED_F1 = 0.75


@dataclass(slots=True)
class Record:
    """A question with its K rollouts and the results of the selection."""

    id: str
    source: str
    correctness: Sequence[float] | None
    """Correctness of each rollout; None, because no program of the original writes it, counts as no values."""
    calls: Sequence[int]
    score_tool: float = 0.0
    score_corr: float = 0.0
    rank: int = 0
    distance: float | None = None
    """Crowding distance, set only if its front was cut; math.inf at the boundary."""


def legacy_select(records: Sequence[Record], num_wanted: int) -> list[Record]:
    """Return at most `num_wanted` records in the original's order: fronts, the last one cut, then the filter."""
    for record in records:
        record.score_tool = variance(record.calls)
        record.score_corr = variance(record.correctness or ())
    taken: list[Record] = []
    for front in quadratic_fronts(records):
        if len(taken) + len(front) <= num_wanted:
            taken += front
            continue
        legacy_crowding(front)
        front.sort(key=lambda record: record.distance or 0.0, reverse=True)
        taken += front[: num_wanted - len(taken)]
        break
    return [record for record in taken if legacy_is_mixed(record)]


def variance(values: Sequence[float]) -> float:
    """Return the population variance; 0 for no values."""
    return statistics.pvariance(values) if values else 0.0


def dominates(one: Record, other: Record) -> bool:
    """Return whether `one` is at least as good in both objectives and better in one."""
    return (
        one.score_tool >= other.score_tool
        and one.score_corr >= other.score_corr
        and (one.score_tool > other.score_tool or one.score_corr > other.score_corr)
    )


def quadratic_fronts(records: Sequence[Record]) -> list[list[Record]]:
    """Sort into non-dominated fronts by definition and set `rank`. O(n^2) comparisons and memory."""
    beaten = [[other for other, two in enumerate(records) if dominates(one, two)] for one in records]
    num_above = [0] * len(records)
    for below in beaten:
        for other in below:
            num_above[other] += 1
    fronts: list[list[Record]] = []
    front = [index for index, count in enumerate(num_above) if count == 0]
    while front:
        following = []
        for index in front:
            records[index].rank = len(fronts)
            for other in beaten[index]:
                num_above[other] -= 1
                if num_above[other] == 0:
                    following.append(other)
        fronts.append([records[index] for index in front])
        front = following
    return fronts


def legacy_crowding(front: list[Record]) -> None:
    """Set `distance` of all members; the front ends up sorted by the last objective."""
    distance = dict.fromkeys((record.id for record in front), 0.0)
    for name in ("score_tool", "score_corr"):
        front.sort(key=lambda record: float(getattr(record, name)))
        values = [float(getattr(record, name)) for record in front]
        spread = values[-1] - values[0]
        if spread == 0:
            continue
        for place, record in enumerate(front):
            if place in (0, len(front) - 1):
                distance[record.id] = math.inf
            else:
                distance[record.id] += (values[place + 1] - values[place - 1]) / spread
    for record in front:
        record.distance = distance[record.id]


def legacy_is_mixed(record: Record) -> bool:
    """Return whether some rollouts are right and some wrong, by the source's domain in the original's filter."""
    values = record.correctness or ()
    if record.source in MATH_IN_FILTER:
        return 0 in values and 1 in values
    return any(value >= MIXED_F1 for value in values) and any(value < MIXED_F1 for value in values)


def legacy_domain_in_rows(source: str) -> str:
    """Return the domain that the original's converter gives to a source: qa for an unknown one, `still` included."""
    return "math" if source in MATH_IN_ROWS else "qa"
