"""Word comparisons of the sample world: which of two or three entities has the largest or smallest value.

Each value is in a document of its own, so that the look-ups do not depend on each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

SLOTS = "abc"
"""Placeholders in a wording, one letter for each compared entity."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A wording that compares two or three entities by one attribute."""

    attribute: str
    combine: Literal["larger", "smaller"]
    num_entities: int
    wording: str


_WORDS = {
    "population": ("towns", "population"),
    "length": ("rivers", "length"),
    "height": ("mountains", "height"),
    "area": ("islands", "area"),
    "employees": ("firms", "number of employees"),
    "depth": ("lakes", "depth"),
}
"""Attribute -> plural noun for the entities that have it, and name of the attribute in a question."""


def comparisons() -> Iterator[Comparison]:
    """Yield every comparison that questions of the sample world can make."""
    for attribute, (plural, name) in _WORDS.items():
        yield Comparison(attribute, "larger", 2, f"Which of the two {plural} has the larger {name}, {{a}} or {{b}}?")
        yield Comparison(
            attribute, "larger", 3, f"Which of the three {plural} has the largest {name}, {{a}}, {{b}} or {{c}}?"
        )
        yield Comparison(attribute, "smaller", 2, f"Which of the two {plural} has the smaller {name}, {{a}} or {{b}}?")
        yield Comparison(
            attribute, "smaller", 3, f"Which of the three {plural} has the smallest {name}, {{a}}, {{b}} or {{c}}?"
        )


def can_be_compared_at_a_glance(values: Sequence[int]) -> bool:
    """Return whether all values have the same number of digits and different first digits."""
    texts = [str(value) for value in values]
    return len({len(text) for text in texts}) == 1 and len({text[0] for text in texts}) == len(texts)
