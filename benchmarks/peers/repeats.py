"""Count repeated calls and lost or duplicated rows after a kill, from the server's log and the resumed run's output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

Call = tuple[int, int]
"""Item, and number of the call within it, from 0."""
LINE_BYTES = 10
"""Length of a line of the log: `0000012 1` and the newline."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a kill and a resume."""

    calls: int
    """Number of calls that the work takes."""
    answered_before: int
    """Number of distinct calls whose response had been sent in full before the process ended."""
    repeated: int
    """Number of responses sent after the kill to calls that had been answered before it."""
    rows_lost: int
    """Number of items missing in the output of the resumed run."""
    rows_doubled: int
    """Number of duplicate rows in that output."""


def line_of(call: Call) -> bytes:
    """Return the log line of one response."""
    return b"%07d %d\n" % call


def calls_of(log: bytes) -> list[Call]:
    """Return the responses of a log, in the order in which they were sent."""
    return [(int(line[:7]), int(line[8:])) for line in log.splitlines()]


def cost_of(before: Iterable[Call], after: Iterable[Call], rows: Iterable[int], num_items: int, num_calls: int) -> Cost:
    """Count repeated calls, and lost and duplicated rows.

    `before` and `after` are the responses sent before and after the process ended. `rows` are the items of the final
    output, `num_items` is their expected number (numbered from 0), `num_calls` the calls per item.
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
