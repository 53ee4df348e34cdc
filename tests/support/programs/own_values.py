"""Values that a program returns, of classes of its own and of zones."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, timedelta, timezone

EAST = timezone(timedelta(hours=2))
ZONES = [None, UTC, EAST]


@dataclass(frozen=True)
class Point:
    """Object of a class that a program defines."""

    x: int
    y: int
    cached: bool = field(default=False, compare=False)


Point.__module__ = "solution"
