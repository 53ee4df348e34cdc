"""Conciseness: the share of rollouts without a redundant or ineffective tool call, from a judge's votes.

Documented in docs/behaviour/metrics.md; after ET-Agent (arXiv 2601.06860). Pure: how votes are asked for and read is
the judge's matter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Votes:
    """What a judge said of one rollout: is there a redundant or ineffective call?"""

    yes: int
    no: int
    abstained: int
    """Replies that could not be read, or did not come."""
    calls_requested: int


@dataclass(frozen=True, slots=True)
class Conciseness:
    """One model on one data set."""

    all: float | None
    """Share of concise rollouts among those with a verdict; None where there is none."""
    tool_users: float | None
    """The same over rollouts with a call."""
    num_decided: int
    num_undecided: int
    """Rollouts whose votes have no majority; they are in neither share."""
    num_without_calls: int
    """Of the decided: rollouts that asked for no call, which are concise by definition."""


def is_redundant(votes: Votes) -> bool | None:
    """The side that more than half of all votes asked for are on, 6 of 10; None if neither side is that strong.

    Abstentions and ties therefore decide nothing. Without a call there is nothing to be redundant, whatever was voted.
    """
    if votes.calls_requested == 0:
        return False
    asked = votes.yes + votes.no + votes.abstained
    if 2 * votes.yes > asked:
        return True
    return False if 2 * votes.no > asked else None


def conciseness(rollouts: Iterable[Votes]) -> Conciseness:
    """Both shares and their counts."""
    verdicts = [(is_redundant(votes), votes.calls_requested > 0) for votes in rollouts]
    decided = [(redundant, used_tools) for redundant, used_tools in verdicts if redundant is not None]
    return Conciseness(
        all=_share_false([redundant for redundant, _ in decided]),
        tool_users=_share_false([redundant for redundant, used_tools in decided if used_tools]),
        num_decided=len(decided),
        num_undecided=len(verdicts) - len(decided),
        num_without_calls=sum(not used_tools for _, used_tools in decided),
    )


def average_conciseness(parts: Iterable[Conciseness]) -> tuple[float | None, float | None]:
    """Unweighted means over data sets of `all` and `tool_users`; None where one of the data sets has no value.

    An average over fewer data sets than the other figures would look like one over the same.
    """
    whole = list(parts)
    return _mean([part.all for part in whole]), _mean([part.tool_users for part in whole])


def _share_false(flags: list[bool]) -> float | None:
    return flags.count(False) / len(flags) if flags else None


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
