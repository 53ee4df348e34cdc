"""Which trajectory of a pool is expanded next, and which are duplicates."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from treadle.agent.contract import CallRecord
from treadle.agent.judges.cases import Verdict
from treadle.agent.trajectory import Trajectory
from treadle.datagen.pools.pool import PoolEntry, best_unexpanded, is_near_duplicate, ranked

Scored = tuple[float | None, int]
"""Score, and number of calls."""


def pool(entries: Sequence[Scored]) -> list[PoolEntry]:
    """Entries in the order of their age."""
    return [_entry(index, score, num_calls) for index, (score, num_calls) in enumerate(entries)]


def _entry(index: int, score: float | None, num_calls: int) -> PoolEntry:
    calls = [CallRecord("search", "q", "refused" if turn else "ok", turn) for turn in range(num_calls)]
    trajectory = Trajectory("answered", "", [], [], calls, num_calls + 1)
    verdict = Verdict(None if score is None else score > 0.8, score, "qa_f1")
    return PoolEntry(f"{index:016x}", index, 0, "initial", None, 0, trajectory, "", verdict)


@pytest.mark.covers("flywheel-9")
def test_math_ranks_correct_first_then_fewer_calls_then_older() -> None:
    judged = pool([(0.0, 1), (1.0, 3), (1.0, 2)])
    assert best_unexpanded(judged, {0}).index == 2
    assert [entry.index for entry in ranked(judged)] == [2, 1, 0]
    assert [entry.index for entry in ranked(pool([(1.0, 2), (0.0, 0), (1.0, 2)]))] == [0, 2, 1]


@pytest.mark.covers("flywheel-9")
def test_qa_ranks_by_score_then_calls_then_age_with_unknown_scores_last() -> None:
    scored = pool([(0.5, 0), (0.9, 3), (None, 0), (0.9, 1), (0.5, 0), (0.0, 0)])
    assert [entry.index for entry in ranked(scored)] == [3, 1, 0, 4, 2, 5]


@pytest.mark.covers("flywheel-9")
def test_trajectories_are_expanded_again_only_if_none_is_left() -> None:
    scored = pool([(0.5, 0), (0.9, 3), (0.9, 1)])
    taken: list[int] = []
    for _ in scored:
        taken.append(best_unexpanded(scored, taken).index)
    assert taken == [2, 1, 0]
    assert best_unexpanded(scored, taken).index == 2


@pytest.mark.parametrize(
    ("first", "second", "least", "same"),
    [
        ("a  b\n", "a b", 1.0, True),
        ("a b", "a c", 1.0, False),
        ("abcdef", "abcdeg", 0.3, True),
        ("abcdef", "abcdeg", 0.4, False),
        ("", " ", 0.5, True),
        ("ab", "", 0.5, False),
    ],
)
def test_duplicates_share_enough_character_five_grams(first: str, second: str, least: float, same: bool) -> None:
    assert is_near_duplicate(first, second, least) is is_near_duplicate(second, first, least) is same
