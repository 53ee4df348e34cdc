"""Sort questions into Pareto fronts by two objectives that are both maximised, and order them by crowding distance.

The result depends only on the points and the questions' keys, never on the order of the input. O(n log n) time, without
lists of pairs. Documented in docs/behaviour/selection.md. Sorting and crowding distance are those of NSGA-II (Deb et
al. 2002); the sweep works for two objectives only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Fronts(NamedTuple):
    """Ranks of the questions; arrays of the same length."""

    rank: np.ndarray
    """Front, int32, from 0 for the best; the length of the longest chain of questions that dominate it."""
    distance: np.ndarray
    """Crowding distance within its front, float64; inf at the boundary."""
    order: np.ndarray
    """Indices of the questions in the order of selection, int64."""


class Points(NamedTuple):
    """The distinct points, by descending first objective, then by descending second one."""

    tool: np.ndarray
    corr: np.ndarray
    of: np.ndarray
    """For each question the index of its point, int64."""


def rank_questions(tool: np.ndarray, corr: np.ndarray, keys: Sequence[str]) -> Fronts:
    """Rank questions by S_tool and S_corr (float64, no nan); `keys` must be unique.

    The order of selection takes one front after another. Within a front it takes rounds: each round takes one question
    from every distinct point, the smallest key first. Within a round, points are sorted by distance, S_corr and S_tool,
    all descending. Wherever a front is cut, no point has given a second question before every point has given one.
    """
    points = distinct_points(tool, corr)
    ranks = sweep_ranks(points)
    distances = crowding_distances(points.tool, points.corr, ranks)
    rank, distance = ranks[points.of], distances[points.of]
    by_key = np.argsort(np.asarray(keys, dtype=np.str_), kind="stable")
    place = np.empty(len(by_key), np.int64)
    place[by_key] = np.arange(len(by_key))
    turn = _turns(points.of, place)
    order = np.lexsort((place, -tool, -corr, -distance, turn, rank))
    return Fronts(rank, distance, order)


def distinct_points(tool: np.ndarray, corr: np.ndarray) -> Points:
    """Return the distinct points, in the order of the sweep."""
    if not len(tool):
        return Points(tool, corr, np.empty(0, np.int64))
    order = np.lexsort((-corr, -tool))
    sorted_tool, sorted_corr = tool[order], corr[order]
    is_new = np.ones(len(order), bool)
    is_new[1:] = (np.diff(sorted_tool) != 0) | (np.diff(sorted_corr) != 0)
    of = np.empty(len(order), np.int64)
    of[order] = np.cumsum(is_new) - 1
    return Points(sorted_tool[is_new], sorted_corr[is_new], of)


def sweep_ranks(points: Points) -> np.ndarray:
    """Return the front of each distinct point, int32.

    `tops` holds, for each front, the largest S_corr so far, negated; these values increase from front to front. A later
    point has no larger S_tool, so every front whose largest S_corr is at least the point's own dominates it. The point
    joins the first front that does not dominate it.
    """
    tops: list[float] = []
    ranks = np.empty(len(points.corr), np.int32)
    for index, negated in enumerate((-points.corr).tolist()):
        front = bisect_right(tops, negated)
        if front == len(tops):
            tops.append(negated)
        else:
            tops[front] = negated
        ranks[index] = front
    return ranks


def crowding_distances(tool: np.ndarray, corr: np.ndarray, rank: np.ndarray) -> np.ndarray:
    """Return the crowding distance of each distinct point within its front; inf for the first and last by an objective.

    If all points of a front are equal in an objective, that objective adds nothing, not even for boundary points.
    """
    distance = np.zeros(len(tool))
    for values, others in ((tool, corr), (corr, tool)):
        order = np.lexsort((others, values, rank))
        _add_distances(distance, values, rank, order)
    return distance


def _add_distances(distance: np.ndarray, values: np.ndarray, rank: np.ndarray, order: np.ndarray) -> None:
    if not len(order):
        return
    fronts, starts = np.unique(rank[order], return_index=True)
    ends = np.append(starts[1:], len(order)) - 1
    sorted_values = values[order]
    ranges = np.repeat(sorted_values[ends] - sorted_values[starts], ends - starts + 1)
    gaps = np.zeros(len(order))
    gaps[1:-1] = sorted_values[2:] - sorted_values[:-2]
    has_range = ranges > 0
    gaps[has_range] /= ranges[has_range]
    gaps[starts] = gaps[ends] = np.inf
    gaps[~has_range] = 0.0
    distance[order] += gaps


def _turns(group: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Return for each question how many questions with the same value in `group` have a lower value in `place`."""
    order = np.lexsort((place, group))
    turns = np.empty(len(order), np.int64)
    if len(order):
        _, starts, counts = np.unique(group[order], return_index=True, return_counts=True)
        turns[order] = np.arange(len(order)) - np.repeat(starts, counts)
    return turns
