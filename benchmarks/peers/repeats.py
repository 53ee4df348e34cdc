"""Counting what a kill cost, from the server's log and the rows of the resumed run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

Call = tuple[int, int]
"""Item and number of the call within it, from 0."""
LINE_BYTES = 10
"""Length of a line of the log: `0000012 1` and the end of the line."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a kill and a resume cost."""

    calls: int
    """Calls that the work takes."""
    answered_before: int
    """Different calls whose answer had been sent in full when the process was gone."""
    repeated: int
    """Answers sent after the kill to calls that had been answered before it."""
    rows_lost: int
    """Items that are missing in the output of the resumed run."""
    rows_doubled: int
    """Rows beyond the first of an item in that output."""


def line_of(call: Call) -> bytes:
    """The line of the log for one answer."""
    return b"%07d %d\n" % call


def calls_of(log: bytes) -> list[Call]:
    """The answers of a log, in the order in which they were sent."""
    return [(int(line[:7]), int(line[8:])) for line in log.splitlines()]


def cost_of(before: Iterable[Call], after: Iterable[Call], rows: Iterable[int], num_items: int, num_calls: int) -> Cost:
    """Count repeats, lost and doubled rows.

    `before` and `after` are the answers sent before the process was gone and from then on; `rows` the items of the
    final output, `num_items` how many there should be (numbered from 0), `num_calls` the calls of each.
    """
    known = set(before)
    found = Counter(rows)
    return Cost(
        calls=num_items * num_calls,
        answered_before=len(known),
        repeated=sum(call in known for call in after),
        rows_lost=sum(item not in found for item in range(num_items)),
        rows_doubled=sum(count - 1 for count in found.values()),
    )
