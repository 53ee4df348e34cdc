"""Conciseness from a judge's votes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.eval.conciseness import Conciseness, Votes, average_conciseness, conciseness, is_redundant

COUNTS = st.tuples(st.integers(0, 10), st.integers(0, 10), st.integers(0, 10), st.integers(0, 3))


def votes(yes: int, no: int, abstained: int = 0, calls: int = 1) -> Votes:
    return Votes(yes, no, abstained, calls)


@pytest.mark.covers("evaluation-9")
def test_worked_example() -> None:
    figures = conciseness([votes(6, 4), votes(5, 5), votes(0, 0, 10), votes(1, 0, 9)])
    assert (figures.all, figures.num_decided, figures.num_undecided) == (0.0, 1, 3)


@pytest.mark.parametrize(
    ("given_votes", "redundant"),
    [
        (votes(6, 4), True),
        (votes(4, 6), False),
        (votes(6, 0, 4), True),
        (votes(0, 6, 4), False),
        (votes(5, 0, 5), None),
        (votes(5, 4, 1), None),
        (votes(2, 1), True),
        (votes(1, 1, 1), None),
        (votes(0, 0), None),
    ],
)
def test_a_majority_is_of_all_votes_asked_for(given_votes: Votes, redundant: bool | None) -> None:
    assert is_redundant(given_votes) is redundant


def test_rollouts_without_calls_are_concise_and_told_apart() -> None:
    figures = conciseness([votes(0, 0, calls=0), votes(10, 0, calls=0), votes(10, 0), votes(0, 10), votes(10, 0)])
    assert (figures.all, figures.tool_users) == (3 / 5, pytest.approx(1 / 3))
    assert figures.num_without_calls == 2


def test_agent_that_never_acts_has_no_share_among_tool_users() -> None:
    figures = conciseness([votes(0, 0, calls=0)])
    assert (figures.all, figures.tool_users) == (1.0, None)
    assert conciseness([votes(5, 5)]) == Conciseness(None, None, 0, 1, 0)
    assert conciseness([]) == Conciseness(None, None, 0, 0, 0)


@pytest.mark.covers("evaluation-13")
@given(st.lists(COUNTS, max_size=20))
def test_shares_are_bounded_and_independent_of_order(counts: list[tuple[int, int, int, int]]) -> None:
    rows = [Votes(*count) for count in counts]
    figures = conciseness(rows)
    assert figures == conciseness(rows[::-1])
    assert figures.num_decided + figures.num_undecided == len(rows)
    for share in (figures.all, figures.tool_users):
        assert share is None or 0 <= share <= 1
    with_no = sum(1 for yes, no, lost, calls in counts if calls == 0 or no > (yes + no + lost) / 2)
    assert figures.all is None or figures.all == with_no / figures.num_decided


def test_average_of_the_published_row() -> None:
    row = [53.3, 65.0, 84.6, 62.0, 58.4, 18.5]
    parts = [Conciseness(value / 100, value / 100, 1, 0, 0) for value in row]
    everything, tool_users = average_conciseness(parts)
    assert everything is not None and round(100 * everything, 1) == 57.0
    assert tool_users == everything


def test_average_needs_every_data_set() -> None:
    parts = [Conciseness(0.5, None, 2, 0, 2), Conciseness(1.0, 1.0, 1, 0, 0)]
    assert average_conciseness(parts) == (0.75, None)
    assert average_conciseness([]) == (None, None)
