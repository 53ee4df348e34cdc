"""Conciseness: whether a rollout has a redundant or ineffective tool call, from a judge's votes.

Documented in docs/behaviour/metrics.md; after ET-Agent (arXiv 2601.06860). Pure: how votes are asked for and read is
the judge's matter.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Votes:
    """What a judge said of one rollout: is there a redundant or ineffective call?"""

    yes: int
    no: int
    abstained: int
    """Replies that could not be read, or did not come."""


def is_redundant(votes: Votes) -> bool | None:
    """The side that more than half of all votes asked for are on, 6 of 10; None if neither side is that strong.

    Abstentions and ties therefore decide nothing.
    """
    asked = votes.yes + votes.no + votes.abstained
    if 2 * votes.yes > asked:
        return True
    return False if 2 * votes.no > asked else None
