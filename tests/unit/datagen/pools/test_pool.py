"""Which trajectory of a pool is expanded next, and which are duplicates."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from treadle.agent.environment import CallRecord
from treadle.agent.judges.base import Verdict
from treadle.agent.rollout import Trajectory
from treadle.datagen.pools.pool import Entry, best_unexpanded, is_twin, ranked

Scored = tuple[float | None, int]
"""Score, and number of calls."""


def pool(entries: Sequence[Scored]) -> list[Entry]:
    """Entries in the order of their age."""
    return [_entry(index, score, num_calls) for index, (score, num_calls) in enumerate(entries)]


def _entry(index: int, score: float | None, num_calls: int) -> Entry:
    calls = [CallRecord("search", "q", "refused" if turn else "ok", turn) for turn in range(num_calls)]
    trajectory = Trajectory("answered", "", [], [], [], [], calls, num_calls + 1)
    verdict = Verdict(None if score is None else score > 0.8, score, "qa_f1")
    return Entry(f"{index:016x}", index, 0, "initial", None, 0, trajectory, "", verdict)


@pytest.mark.covers("flywheel-9")
def test_math_ranks_right_before_wrong_then_fewer_calls_then_age() -> None:
    judged = pool([(0.0, 1), (1.0, 3), (1.0, 2)])
    assert best_unexpanded(judged, {0}).index == 2
    assert [entry.index for entry in ranked(judged)] == [2, 1, 0]
    assert [entry.index for entry in ranked(pool([(1.0, 2), (0.0, 0), (1.0, 2)]))] == [0, 2, 1]


@pytest.mark.covers("flywheel-9")
def test_qa_ranks_by_score_then_calls_then_age_and_what_is_unknown_comes_with_the_worst() -> None:
    scored = pool([(0.5, 0), (0.9, 3), (None, 0), (0.9, 1), (0.5, 0), (0.0, 0)])
    assert [entry.index for entry in ranked(scored)] == [3, 1, 0, 4, 2, 5]


@pytest.mark.covers("flywheel-9")
def test_none_is_taken_up_again_while_another_one_is_left() -> None:
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
def test_twins_share_enough_of_their_runs_of_five_characters(first: str, second: str, least: float, same: bool) -> None:
    assert is_twin(first, second, least) is is_twin(second, first, least) is same
