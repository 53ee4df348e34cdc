"""Tools for tests that run them in other processes or engines."""

from __future__ import annotations


def population(town: str) -> int:
    """Return the number of people in a town.

    Args:
        town: Name of the town.
    """
    if town not in TOWNS:
        raise LookupError(f"no town {town}")
    return TOWNS[town]


TOWNS = {"Tazpo": 1812, "Vorna": 1848}
