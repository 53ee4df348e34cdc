"""Decide from a judge's votes whether a rollout has a redundant or ineffective tool call.

Documented in docs/behaviour/metrics.md; after ET-Agent (arXiv 2601.06860). Pure functions: requesting and parsing votes
is done by the judge.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Votes:
    """Votes of a judge on one rollout: does it contain a redundant or ineffective tool call?"""

    yes: int
    no: int
    abstained: int
    """Number of replies that are missing or cannot be parsed."""


def is_redundant(votes: Votes) -> bool | None:
    """Return the answer given by more than half of all requested votes (such as 6 of 10), or None if there is none.

    Abstentions count in the total, so abstentions and ties can leave the result undecided.
    """
    asked = votes.yes + votes.no + votes.abstained
    if 2 * votes.yes > asked:
        return True
    return False if 2 * votes.no > asked else None
