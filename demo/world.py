"""Generate the sample world: a seeded encyclopedia of things that do not exist, and its files.

Its facts cannot be known in advance, so an agent needs its tools. Every entity is a pure function of (seed, size,
index): documents are streamed in bounded memory, and any part can be regenerated. See docs/behaviour/demo.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from treadle.core.errors import ConfigError
from treadle.demo.names import mix, name

Split = Literal["train", "heldout"]
EntityKind = Literal["town", "person", "river", "mountain", "book", "island", "firm", "lake"]

MIN_DOCUMENTS = 100
MAX_DOCUMENTS = 1_000_000

_BLOCK: tuple[EntityKind, ...] = (
    "town", "person", "river", "town", "person", "mountain", "book", "island", "firm", "lake",
)  # fmt: skip
_HELDOUT_EVERY = 5

SENTENCES: Mapping[EntityKind, str] = {
    "town": "The town of {name} has {population} people and lies on the river {river}.",
    "person": "{name} was a {profession} born in {birth_year} in {hometown}.",
    "river": "The river {name} is {length} km long and rises on Mount {mountain}.",
    "mountain": "Mount {name} is {height} metres high and was first climbed by {climber}.",
    "book": "The book {name} was written by {author} in {written}.",
    "island": "The island of {name} covers {area} square km and its capital is {capital}.",
    "firm": "The firm {name} makes {product} in {seat} and employs {employees} people.",
    "lake": "Lake {name} is {depth} metres deep and lies near {shore}.",
}
"""The single sentence of each document."""
ATTRIBUTES: Mapping[EntityKind, tuple[str, ...]] = {
    kind: tuple(field for field in re.findall(r"\{(\w+)\}", sentence) if field != "name")
    for kind, sentence in SENTENCES.items()
}
"""Fields of the sentences that questions can ask for."""

PROFESSIONS = ("painter", "baker", "poet", "doctor", "sailor", "singer", "lawyer", "weaver", "potter", "judge")
PRODUCTS = ("lamps", "boats", "clocks", "chairs", "ropes", "bells", "gloves", "paper", "soap", "knives")

_RANGES: Mapping[str, tuple[int, int]] = {
    "population": (1100, 9899),
    "birth_year": (1700, 1899),
    "length": (60, 899),
    "height": (1100, 6899),
    "area": (20, 989),
    "employees": (20, 989),
    "depth": (12, 389),
}
_WORDS: Mapping[str, tuple[str, ...]] = {"profession": PROFESSIONS, "product": PRODUCTS}
RELATIONS: Mapping[str, EntityKind] = {
    "river": "river",
    "hometown": "town",
    "mountain": "mountain",
    "climber": "person",
    "author": "person",
    "capital": "town",
    "seat": "town",
    "shore": "town",
}
"""Attributes whose value is another entity, with its kind."""

_SALTS = {name: 100 + number for number, name in enumerate([*_RANGES, *_WORDS, *RELATIONS, "written"])}


class Encyclopedia:
    """Entities of one world: index -> kind, name, attributes, document. Holds no state except its parameters."""

    def __init__(self, documents: int, seed: int) -> None:
        if not MIN_DOCUMENTS <= documents <= MAX_DOCUMENTS:
            raise ConfigError(f"a world has {MIN_DOCUMENTS} to {MAX_DOCUMENTS} documents, not {documents}")
        self.documents = documents
        self.seed = seed
        self._blocks = documents // len(_BLOCK)
        self._heldout_blocks = self._blocks // _HELDOUT_EVERY

    def kind(self, index: int) -> EntityKind:
        """Return the kind of an entity; each block of ten consecutive entities has the same kinds in the same order."""
        return _BLOCK[index % len(_BLOCK)]

    def split(self, index: int) -> Split:
        """Return the split of an entity: every fifth block is held out. Relations never cross splits."""
        return "heldout" if index // len(_BLOCK) % _HELDOUT_EVERY == _HELDOUT_EVERY - 1 else "train"

    def name(self, index: int) -> str:
        """Return the name of an entity, unique in its world."""
        return name(self.seed, index)

    def pick(self, split: Split, kind: EntityKind, bits: int) -> int:
        """Choose an entity of a split and kind by pseudo-random bits."""
        if split == "heldout":
            block = bits % self._heldout_blocks * _HELDOUT_EVERY + _HELDOUT_EVERY - 1
        else:
            group, place = divmod(bits % (self._blocks - self._heldout_blocks), _HELDOUT_EVERY - 1)
            block = group * _HELDOUT_EVERY + place
        places = [place for place, other in enumerate(_BLOCK) if other == kind]
        return block * len(_BLOCK) + places[(bits >> 40) % len(places)]

    def related(self, index: int, attribute: str) -> int:
        """Return the entity that a relation of `RELATIONS` points to."""
        bits = mix(self.seed, index, _SALTS[attribute])
        return self.pick(self.split(index), RELATIONS[attribute], bits)

    def value(self, index: int, attribute: str) -> int | str:
        """Return an attribute: a number, a word, or the name of a related entity."""
        if attribute in RELATIONS:
            return self.name(self.related(index, attribute))
        bits = mix(self.seed, index, _SALTS[attribute])
        if attribute == "written":
            born = self.value(self.related(index, "author"), "birth_year")
            assert isinstance(born, int)
            return born + 21 + bits % 40
        if attribute in _WORDS:
            return _WORDS[attribute][bits % len(_WORDS[attribute])]
        low, high = _RANGES[attribute]
        return low + bits % (high - low + 1)

    def document(self, index: int) -> dict[str, str]:
        """Return the document of an entity: {id, title, text}, one sentence."""
        kind, title = self.kind(index), self.name(index)
        values = {attribute: self.value(index, attribute) for attribute in ATTRIBUTES[kind]}
        return {"id": self.document_id(index), "title": title, "text": SENTENCES[kind].format(name=title, **values)}

    def document_id(self, index: int) -> str:
        """Return the id of an entity's document."""
        return f"w{index:07d}"

    def stream(self) -> Iterator[dict[str, str]]:
        """Yield all documents in order of index."""
        return (self.document(index) for index in range(self.documents))


@dataclass(frozen=True, slots=True)
class World:
    """Files of a written world."""

    folder: Path
    corpus: Path
    questions: Path
    num_documents: int
    num_train: int
    num_heldout: int
