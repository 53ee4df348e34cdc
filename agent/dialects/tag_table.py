"""Hold the table of a dialect of tags as data, with the patterns that follow from it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from treadle.agent.dialects.base import RESULT
from treadle.core.answers.extraction import SYSTEM_KINDS


@dataclass(frozen=True)
class Tag:
    """Row of the tag table: its author, whether it calls a tool, and whether generation stops at its closing marker.

    `parameter` is the name of the argument that gets the text of a call. Tools whose tags do not stop generation can be
    called several times in one turn. `name` is the kind of the tag's segments. `word` is the text inside the markers,
    by default the name.
    """

    name: str
    author: Literal["model", "system"] = "model"
    is_tool: bool = False
    stop: bool = False
    parameter: str = "input"
    word: str = ""

    @cached_property
    def marker_word(self) -> str:
        """Word in the markers."""
        return self.word or self.name

    @cached_property
    def opening(self) -> str:
        """Marker that begins a block."""
        return f"<{self.marker_word}>"

    @cached_property
    def closing(self) -> str:
        """Marker that ends a block."""
        return f"</{self.marker_word}>"


@dataclass(frozen=True)
class TagTable:
    """Table of tags, and which tag may follow which (for validators; the engine does not enforce it).

    Without `successors` the format of a turn is not judged. `answer` may name a tag that the table does not have.
    With `spaced`, a result block has a space before it and newlines inside its markers.
    """

    tags: tuple[Tag, ...]
    answer: str = "answer"
    successors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    spaced: bool = False

    def __post_init__(self) -> None:
        reserved = {tag.name for tag in self.tags} & (SYSTEM_KINDS - {RESULT})
        if reserved:
            raise ValueError(f"no tag may be named {', '.join(sorted(reserved))}")

    @cached_property
    def by_name(self) -> dict[str, Tag]:
        """Tags by name."""
        return {tag.name: tag for tag in self.tags}

    @cached_property
    def by_word(self) -> dict[str, Tag]:
        """Tags by the word in their markers."""
        return {tag.marker_word: tag for tag in self.tags}

    @cached_property
    def tools(self) -> tuple[str, ...]:
        """Names of the tags that call a tool, in the order of the table."""
        return tuple(tag.name for tag in self.tags if tag.is_tool)

    @cached_property
    def every_call_stops(self) -> bool:
        """Whether generation stops at each call, so that a turn has at most one."""
        return all(self.by_name[name].stop for name in self.tools)

    @cached_property
    def stops(self) -> tuple[str, ...]:
        """Closing markers at which generation stops; they are kept in the text."""
        return tuple(tag.closing for tag in self.tags if tag.stop)

    @cached_property
    def markers(self) -> re.Pattern[str]:
        """Pattern of any marker of the table; group 1 is `/` for a closing one, group 2 the word."""
        return re.compile(f"<(/?)({'|'.join(re.escape(tag.marker_word) for tag in self.tags)})>")

    @cached_property
    def read_markers(self) -> re.Pattern[str]:
        """Pattern of anything that a model may read as a marker: any letter case, with white space inside."""
        words = "|".join(re.escape(tag.marker_word) for tag in self.tags)
        return re.compile(rf"<\s*/?\s*(?:{words})\s*>", re.IGNORECASE)

    @cached_property
    def closing_stops(self) -> re.Pattern[str]:
        """Pattern of any closing marker at which generation stops; it matches nothing if no tag stops."""
        return re.compile("|".join(re.escape(stop) for stop in self.stops) or "(?!)")

    def as_json(self) -> dict[str, object]:
        """Return the table as JSON-able data, for the environment's digest."""
        return {
            "tags": [
                [tag.name, tag.author, tag.is_tool, tag.stop, tag.parameter, *filter(None, [tag.word])]
                for tag in self.tags
            ],
            "answer": self.answer,
            "successors": {name: list(after) for name, after in self.successors.items()},
            "spaced": self.spaced,
        }
