"""Extract facts from tool results: sentences of documents, and numbers that programs printed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from treadle.demo.tutor.conversation import Call
from treadle.demo.world import SENTENCES, EntityKind
from treadle.demo.world_templates import KIND_OF


def _sentence_pattern(sentence: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", sentence)
    value = r"(?P<{}>[A-Z][a-z]+|[a-z]+|\d+)"
    return re.compile("".join(value.format(part) if place % 2 else re.escape(part) for place, part in enumerate(parts)))


_PATTERNS = [_sentence_pattern(sentence) for sentence in SENTENCES.values()]
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")

_LEADS: Mapping[EntityKind, str] = {
    "town": "town of {}",
    "person": "{} born",
    "river": "river {}",
    "mountain": "Mount {}",
    "book": "book {}",
    "island": "island of {}",
    "firm": "firm {}",
    "lake": "Lake {}",
}
_WORDS: Mapping[str, tuple[str, ...]] = {
    "population": ("people", "has people"),
    "river": ("lies on the river", "river"),
    "profession": ("profession", "was a"),
    "birth_year": ("year", "in which year"),
    "hometown": ("in which town", "where"),
    "length": ("km long", "length km long"),
    "mountain": ("rises on", "rises on which Mount"),
    "height": ("metres high", "height metres high"),
    "climber": ("first climbed by", "climbed"),
    "author": ("written by", "author written by"),
    "written": ("written in", "year written"),
    "area": ("covers square km", "area square km"),
    "capital": ("capital", "its capital"),
    "product": ("makes", "makes what"),
    "seat": ("makes in", "employs"),
    "employees": ("employs people", "people employed"),
    "depth": ("metres deep", "depth metres deep"),
    "shore": ("lies near", "near"),
}


def read_facts(calls: Iterable[Call]) -> dict[tuple[str, str], str]:
    """Return the value in every sentence of the sample world in the search results, by (name, attribute)."""
    facts: dict[tuple[str, str], str] = {}
    for call in calls:
        if call.tool != "search" or not call.result:
            continue
        for pattern in _PATTERNS:
            for match in pattern.finditer(call.result):
                found = match.groupdict()
                name = found.pop("name")
                facts.update({(name, attribute): value for attribute, value in found.items()})
    return facts


def read_number(call: Call) -> str | None:
    """Return the number that a program printed, or None if the result is anything else."""
    if call.tool != "python" or call.result is None or not _NUMBER.fullmatch(call.result):
        return None
    return call.result


def queries(name: str, attribute: str) -> tuple[str, ...]:
    """Return search queries for an attribute of an entity, in words that its document uses."""
    lead = _LEADS[KIND_OF[attribute]].format(name)
    return tuple(f"{lead} {words}" for words in _WORDS[attribute])


def label(attribute: str) -> str:
    """Return an attribute in words."""
    return {"birth_year": "birth year", "written": "year of writing", "seat": "town", "shore": "nearby town"}.get(
        attribute, attribute
    )
