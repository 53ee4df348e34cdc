"""Define the question templates of the sample world: wordings, and the plan that answers each.

Questions are generated from these templates, and the tutor recognizes them by the same wordings; the answers are only
in the documents. A *path* starts at a name in the question and follows attributes from document to document: `("a",
"author", "birth_year")` looks up the book, then its author.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from treadle.demo.comparisons import SLOTS, Comparison, comparisons
from treadle.demo.world import ATTRIBUTES, EntityKind

Combine = Literal["value", "difference", "sum", "larger", "smaller"]

KIND_OF: dict[str, EntityKind] = {attribute: kind for kind, names in ATTRIBUTES.items() for attribute in names}
"""Attribute -> the kind of entity that has it."""

UNITS: Mapping[str, str] = {
    "population": "people",
    "length": "km",
    "height": "metres",
    "area": "square km",
    "employees": "people",
    "depth": "metres",
}

TITLES: Mapping[EntityKind, str] = {"river": "River {}", "mountain": "Mount {}", "lake": "Lake {}"}
"""Longer spellings of names, accepted as answers."""


@dataclass(frozen=True, slots=True)
class Template:
    """One kind of question. `expression` (over the numbers x, y, z in the wording) marks a pure computation."""

    id: str
    tier: int
    source: str
    wordings: tuple[str, ...]
    paths: tuple[tuple[str, ...], ...] = ()
    combine: Combine = "value"
    expression: str = ""
    ranges: tuple[tuple[int, int], ...] = ()

    def winner(self, values: Sequence[int]) -> int | None:
        """Return the index of the largest or smallest value, as the comparison asks; None if several share it."""
        best = max(values) if self.combine == "larger" else min(values)
        return values.index(best) if values.count(best) == 1 else None

    @property
    def num_calls(self) -> int:
        """Number of tool calls that a lean solution needs."""
        lookups = {path[: end + 1] for path in self.paths for end in range(1, len(path))}
        documents = {path[:-1] for path in lookups}
        return len(documents) + (1 if self.expression or self.combine in ("difference", "sum") else 0)

    def start_kind(self, slot: str) -> EntityKind:
        """Return the kind of entity that a slot of the wording names."""
        return KIND_OF[next(path[1] for path in self.paths if path[0] == slot)]


def _pair(name: str, attribute: str, combine: Combine, *wordings: str) -> Template:
    source = "world-compare" if combine in ("larger", "smaller") else "world-arithmetic"
    return Template(f"{combine}-{name}", 1, source, wordings, (("a", attribute), ("b", attribute)), combine)


def _facts(one: Comparison) -> Template:
    id = f"{one.combine}-{one.attribute}-of-{one.num_entities}"
    paths = tuple((slot, one.attribute) for slot in SLOTS[: one.num_entities])
    return Template(id, 2, "world-facts", (one.wording,), paths, one.combine)


def _compute(name: str, expression: str, ranges: tuple[tuple[int, int], ...], *wordings: str) -> Template:
    return Template(f"compute-{name}", 0, "world-compute", wordings, (), "value", expression, ranges)


_LOOKUPS = {
    "population": (
        "How many people live in the town of {a}?",
        "What is the population of the town {a}?",
        "The town of {a} is home to how many people?",
    ),
    "river": (
        "On which river does the town of {a} lie?",
        "Which river flows past the town {a}?",
        "What is the name of the river at {a}?",
    ),
    "profession": (
        "What was the profession of {a}?",
        "What did {a} do for a living?",
        "Which trade did {a} follow?",
    ),
    "birth_year": (
        "In which year was {a} born?",
        "What is the birth year of {a}?",
        "When was {a} born?",
    ),
    "hometown": (
        "In which town was {a} born?",
        "What is the birthplace of {a}?",
        "Where was {a} born?",
    ),
    "length": (
        "How long is the river {a} in km?",
        "What is the length of the river {a} in km?",
        "How many km long is the river {a}?",
    ),
    "mountain": (
        "On which mountain does the river {a} rise?",
        "Which mountain is the source of the river {a}?",
        "The river {a} rises on which mountain?",
    ),
    "height": (
        "How high is Mount {a} in metres?",
        "What is the height of Mount {a} in metres?",
        "How many metres high is Mount {a}?",
    ),
    "climber": (
        "Who first climbed Mount {a}?",
        "By whom was Mount {a} first climbed?",
        "What is the name of the first person on top of Mount {a}?",
    ),
    "author": (
        "Who wrote the book {a}?",
        "Who is the author of the book {a}?",
        "By whom was the book {a} written?",
    ),
    "written": (
        "In which year was the book {a} written?",
        "When was the book {a} written?",
        "From which year is the book {a}?",
    ),
    "area": (
        "How many square km does the island of {a} cover?",
        "What is the area of the island {a} in square km?",
        "How large is the island of {a} in square km?",
    ),
    "capital": (
        "What is the capital of the island of {a}?",
        "Which town is the capital of the island {a}?",
        "The island of {a} has which capital?",
    ),
    "product": (
        "What does the firm {a} make?",
        "Which goods does the firm {a} make?",
        "What is made by the firm {a}?",
    ),
    "seat": (
        "In which town does the firm {a} work?",
        "Where is the firm {a}?",
        "Which town is the firm {a} in?",
    ),
    "employees": (
        "How many people does the firm {a} employ?",
        "How many people work for the firm {a}?",
        "What is the number of employees of the firm {a}?",
    ),
    "depth": (
        "How deep is Lake {a} in metres?",
        "What is the depth of Lake {a} in metres?",
        "How many metres deep is Lake {a}?",
    ),
    "shore": (
        "Which town lies near Lake {a}?",
        "Near which town is Lake {a}?",
        "What is the town near Lake {a} called?",
    ),
}
"""Attribute -> wordings that ask for it."""

_HOPS = {
    "author-birth": (
        ("author", "birth_year"),
        ("The author of the book {a} was born in which year?", "When was the book {a}'s author born?"),
    ),
    "author-town": (
        ("author", "hometown"),
        ("The author of the book {a} was born where?", "In which town was the book {a}'s author born?"),
    ),
    "climber-trade": (
        ("climber", "profession"),
        ("Whoever climbed Mount {a} first did what for a living?", "What was Mount {a}'s first climber by trade?"),
    ),
    "town-length": (
        ("river", "length"),
        ("The town of {a} lies on a river of how many km?", "How long is the town {a}'s river in km?"),
    ),
    "river-height": (
        ("mountain", "height"),
        ("The river {a} rises on a mountain of how many metres?", "How high is the river {a}'s source mountain?"),
    ),
    "capital-people": (
        ("capital", "population"),
        ("How many people live in the island {a}'s capital?", "The capital of the island {a} has how many people?"),
    ),
    "seat-river": (
        ("seat", "river"),
        ("The firm {a} works in a town on which river?", "Which river runs past the firm {a}'s town?"),
    ),
    "home-river": (
        ("hometown", "river", "length"),
        ("The birthplace of {a} lies on a river of how many km?", "How long is the river in {a}'s birthplace?"),
    ),
    "author-people": (
        ("author", "hometown", "population"),
        (
            "The author of the book {a} comes from a town of how many people?",
            "How many people live where the book {a}'s author was born?",
        ),
    ),
    "rise-climber": (
        ("mountain", "climber"),
        (
            "The river {a} rises on a mountain first climbed by whom?",
            "Who first climbed the river {a}'s source mountain?",
        ),
    ),
}
"""Name -> attributes along the path, and wordings."""

TEMPLATES: tuple[Template, ...] = (
    *(
        Template(f"lookup-{attribute}", 0, "world-lookup", wordings, (("a", attribute),))
        for attribute, wordings in _LOOKUPS.items()
    ),
    _compute(
        "boxes",
        "{x} * {y} + {z}",
        ((12, 98), (13, 97), (101, 989)),
        "{a} packs {x} boxes of {y} plums each and adds {z} loose plums. How many plums is that?",
        "There are {x} sacks with {y} nuts each in the barn of {a}, and {z} more nuts on the floor. How many nuts?",
    ),
    _compute(
        "shelves",
        "{x} * {y} - {z}",
        ((31, 98), (32, 97), (101, 889)),
        "{a} fills {x} shelves with {y} jars each, then sells {z} jars. How many jars are left?",
        "The ship of {a} loads {x} crates of {y} bottles, but {z} bottles break. How many bottles stay whole?",
    ),
    _compute(
        "teams",
        "({x} + {y}) * {z}",
        ((103, 897), (104, 896), (12, 98)),
        "{a} hires {x} men and {y} women and pays each of them {z} coins. How many coins is that in all?",
        "At the fair of {a}, {x} adults and {y} children pay {z} coins each. How many coins come in?",
    ),
    _compute(
        "weeks",
        "{x} - {y} * {z}",
        ((9001, 9989), (12, 88), (13, 87)),
        "{a} owns {x} bricks and uses {y} of them a day for {z} days. How many bricks remain?",
        "The well of {a} holds {x} litres; {y} litres are drawn every hour for {z} hours. How many litres remain?",
    ),
    _compute(
        "squares",
        "{x} ** 2 + {y} ** 2 - {z}",
        ((31, 98), (32, 97), (101, 989)),
        "{a} lays two square floors, {x} by {x} tiles and {y} by {y} tiles, and {z} tiles were there already. "
        "How many tiles are new?",
    ),
    _compute(
        "remainder",
        "{x} * {y} % {z}",
        ((103, 989), (104, 988), (23, 97)),
        "{a} shares {x} rows of {y} apples evenly among {z} guests. How many apples are left over?",
        "{a} puts {x} bags of {y} beads into boxes of {z} beads each. How many beads do not fill a box?",
    ),
    *(
        Template(f"hops-{name}", 1, "world-hops", wordings, (("a", *path),))
        for name, (path, wordings) in _HOPS.items()
    ),
    _pair("population", "population", "sum", "How many people live in the towns of {a} and {b} together?"),
    _pair("height", "height", "difference", "By how many metres do the heights of Mount {a} and Mount {b} differ?"),
    _pair("depth", "depth", "difference", "By how many metres do the depths of Lake {a} and Lake {b} differ?"),
    _pair("employees", "employees", "sum", "How many people do the firms {a} and {b} employ together?"),
    _pair("length", "length", "larger", "Which river is longer, {a} or {b}?"),
    _pair("area", "area", "smaller", "Which island is smaller, {a} or {b}?"),
    _pair("birth", "birth_year", "smaller", "Who was born first, {a} or {b}?"),
    _pair("height", "height", "larger", "Which mountain is higher, Mount {a} or Mount {b}?"),
    Template(
        "difference-age",
        1,
        "world-arithmetic",
        ("How old was the author of the book {a} while writing it?", "At what age did its author write the book {a}?"),
        (("a", "written"), ("a", "author", "birth_year")),
        "difference",
    ),
    *map(_facts, comparisons()),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RecognizedQuestion:
    """A recognized question: its template, the names by slot, and the numbers by slot."""

    template: Template
    names: Mapping[str, str]
    numbers: Mapping[str, int]

    @property
    def expression(self) -> str:
        """Expression of the template, with the question's numbers filled in."""
        return self.template.expression.format(**self.numbers)


def _pattern(wording: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w)\}", wording)
    seen: set[str] = set()
    out = []
    for place, part in enumerate(parts):
        if place % 2 == 0:
            out.append(re.escape(part))
        elif part in seen:
            out.append(f"(?P={part})")
        else:
            seen.add(part)
            out.append(rf"(?P<{part}>\d{{1,9}})" if part in "xyz" else rf"(?P<{part}>[A-Z][a-z]+)")
    return re.compile("".join(out))


_PATTERNS = [(_pattern(wording), template) for template in TEMPLATES for wording in template.wordings]


_OPTIONS = re.compile(r"\n\s*A\. ")


@lru_cache(maxsize=65536)
def recognise(question: str) -> RecognizedQuestion | None:
    """Return the template of a question by its wording; None for a question that is not of the sample world.

    Options under a question are not part of its wording: the tutor answers with the option's text.
    """
    text = " ".join(_OPTIONS.split(question, maxsplit=1)[0].split())
    if len(text) > 300:
        return None
    for pattern, template in _PATTERNS:
        match = pattern.fullmatch(text)
        if match:
            found = match.groupdict()
            numbers = {slot: int(value) for slot, value in found.items() if slot in "xyz"}
            return RecognizedQuestion(
                template, {slot: value for slot, value in found.items() if slot in SLOTS}, numbers
            )
    return None
