"""What data sets are of, and which averages over them there are."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

MATH = "math"
KNOWLEDGE = "knowledge"
MIXED = "mixed"
ALL = "all"
"""The average over the headline data sets, or over all where there are none of these."""
EVERY = "every"
"""The average over all data sets, where that is another."""
AVERAGES = (ALL, EVERY, MATH, KNOWLEDGE)
"""Names of averages over data sets, the one that models are told apart by first."""


def area_of(domains: Collection[str]) -> str:
    """What a data set of which nothing else is said is of: by the domains of its rows."""
    if set(domains) == {MATH}:
        return MATH
    return MIXED if MATH in domains else KNOWLEDGE


def of_headline(datasets: Sequence[str], headline: Collection[str]) -> list[str]:
    """The data sets that `all` is over: those of the headline, or all where there are none of these."""
    return [dataset for dataset in datasets if dataset in headline] or list(datasets)


def averaged(areas: Mapping[str, str], headline: Collection[str] = ()) -> dict[str, list[str]]:
    """Name of an average -> the data sets that it is over, from what each data set is of.

    `all`, and `math` and `knowledge` where they occur, are over those of the headline (`of_headline`); `every` is over
    all, where that is another. A data set of mixed area counts in `all` and `every` alone.
    """
    chosen = of_headline(list(areas), headline)
    groups = {ALL: chosen} | {area: [one for one in chosen if areas[one] == area] for area in (MATH, KNOWLEDGE)}
    if len(chosen) < len(areas):
        groups[EVERY] = list(areas)
    return {name: group for name, group in groups.items() if group}
