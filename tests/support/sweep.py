"""Parameters and examples of which CI runs a sample and `make sweep` all."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

import pytest


def sampled(values: Iterable[object], kept: Collection[object]) -> list[object]:
    """Return the parameters, those outside `kept` marked `sweep`; a tuple is the values of several arguments.

    Raises:
        ValueError: none of them is kept.
    """
    values = list(values)
    if not any(value in kept for value in values):
        raise ValueError(f"no parameter is left for CI: {values}")
    return [value if value in kept else _swept(*value if isinstance(value, tuple) else (value,)) for value in values]


def examples(count: int) -> int:
    """Return how many examples of a property are tried: a quarter in CI, other ones each time."""
    return count if os.environ.get("TREADLE_SWEEP") else -(-count // 4)


def _swept(*arguments: object) -> object:
    return pytest.param(*arguments, marks=pytest.mark.sweep)
