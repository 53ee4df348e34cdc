"""Word comparisons of the sample world: which of two or three entities has the largest or smallest value.

Each value is in a document of its own, so that the look-ups do not depend on each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

SLOTS = "abc"
"""Names of the compared entities in a wording."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A wording that compares two or three entities by one attribute."""

    attribute: str
    combine: Literal["larger", "smaller"]
    num_entities: int
    wording: str


_WORDS = {
    "population": ("towns", "has more people", "has the most people", "has fewer people", "has the fewest people"),
    "birth_year": ("people", "was born later", "was born last", "was born earlier", "was born first"),
    "length": ("rivers", "is longer", "is the longest", "is shorter", "is the shortest"),
    "height": ("mountains", "is higher", "is the highest", "is lower", "is the lowest"),
    "written": ("books", "is newer", "is the newest", "is older", "is the oldest"),
    "area": ("islands", "is larger", "is the largest", "is smaller", "is the smallest"),
    "employees": ("firms", "employs more people", "employs the most people", "employs fewer people",
                  "employs the fewest people"),
    "depth": ("lakes", "is deeper", "is the deepest", "is shallower", "is the shallowest"),
}  # fmt: skip
"""Attribute -> plural of its entities; two and three of them compared for the larger value, then for the smaller."""
_PAIR, _TRIPLE = "{a} or {b}", "{a}, {b} or {c}"


def comparisons() -> Iterator[Comparison]:
    """Yield all comparisons."""
    for attribute, (plural, more, most, less, least) in _WORDS.items():
        yield Comparison(attribute, "larger", 2, f"Which of the two {plural} {more}, {_PAIR}?")
        yield Comparison(attribute, "larger", 3, f"Which of the three {plural} {most}, {_TRIPLE}?")
        yield Comparison(attribute, "smaller", 2, f"Which of the two {plural} {less}, {_PAIR}?")
        yield Comparison(attribute, "smaller", 3, f"Which of the three {plural} {least}, {_TRIPLE}?")
