"""Check the outcomes and rewards that a user's code returns."""

from __future__ import annotations

import math
from typing import Any

from treadle.agent.contract import Outcome


def as_outcome(value: Any, source: str) -> Outcome | None:
    """Return `value`, which the method `source` returned, as an outcome; a number becomes its reward.

    Raises TypeError for other types. The message leaves out the value, since it may contain the hidden payload.
    """
    if value is None:
        return None
    if not isinstance(value, Outcome):
        return Outcome(reward=as_number(value, f"{source} returned a value", "return a number, Outcome, or None"))
    given = f"{source} returned an Outcome with"
    success = None if value.success is None else bool(as_number(value.success, f"{given} a success", "give a bool"))
    return Outcome(
        None if value.reward is None else as_number(value.reward, f"{given} a reward", "give a number or None"),
        success,
        {name: as_number(part, f"{given} a part", "give numbers") for name, part in value.parts.items()},
    )


def as_number(value: Any, given: str, remedy: str) -> float:
    """Return a number as a Python float, also one of numpy or torch, which have `item`; raise TypeError for others."""
    plain = value.item() if hasattr(value, "item") else value
    if not isinstance(plain, (int, float)):
        raise TypeError(f"{given} of type {type(value).__name__}; {remedy}")
    return float(plain)


def require_finite(reward: float | None, given: str) -> None:
    """Raise ValueError for a reward that is not finite.

    The journal cannot hold it, so a resumed episode would differ from the recorded one.
    """
    if reward is not None and not math.isfinite(reward):
        raise ValueError(f"{given} {reward}; give a finite number, or None if it is unknown")
