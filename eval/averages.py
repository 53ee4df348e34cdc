"""Define the averages over data sets (all, every, math, knowledge) and which data sets each one covers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

MATH = "math"
KNOWLEDGE = "knowledge"
MIXED = "mixed"
ALL = "all"
"""Average over the headline data sets, or over all data sets if no evaluated one is in the headline."""
EVERY = "every"
"""Average over all data sets. It exists only if it differs from `all`."""
AVERAGES = (ALL, EVERY, MATH, KNOWLEDGE)
"""Names of averages over data sets, the primary one first."""


def area_of(domains: Collection[str]) -> str:
    """Return the area of a data set (math, knowledge or mixed) from the domains of its rows.

    Tasks, and questions of domains of users, are in no area.
    """
    found = set(domains)
    return MATH if found == {MATH} else KNOWLEDGE if found <= {"qa", "choice"} else MIXED


def headline_datasets(datasets: Sequence[str], headline: Collection[str]) -> list[str]:
    """Return the data sets that `all` covers: those in the headline, or all of them if none is in the headline."""
    return [dataset for dataset in datasets if dataset in headline] or list(datasets)


def average_groups(areas: Mapping[str, str], headline: Collection[str] = ()) -> dict[str, list[str]]:
    """Map the name of each average to the data sets it covers, given the area of each data set.

    `all`, `math` and `knowledge` cover headline data sets only (`headline_datasets`). `every` covers all data sets and
    is present only if it differs from `all`. A data set with area `mixed` counts in `all` and `every` only. Empty
    averages are left out.
    """
    chosen = headline_datasets(list(areas), headline)
    groups = {ALL: chosen} | {area: [one for one in chosen if areas[one] == area] for area in (MATH, KNOWLEDGE)}
    if len(chosen) < len(areas):
        groups[EVERY] = list(areas)
    return {name: group for name, group in groups.items() if group}
