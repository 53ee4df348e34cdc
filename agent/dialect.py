"""Parse the text of an agent's turn into typed segments and calls, and render segments as text again.

All that the agent writes is one flat text. Tags are data (a `Dialect`), so another dialect is another table. This
module is pure: no ids, no tools, no limits. It only reads text; what happened in a rollout is recorded in the ledger of
the environment. Rules: docs/behaviour/agent.md; the five tags are those of arXiv 2601.06860.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from treadle.core.untrusted.lookalikes import sub_first

TEXT = "text"
"""Kind of a segment outside all tags."""

RESULT = "result"
"""Name of the tag, and kind of the segments, that only the system writes."""


@dataclass(frozen=True, slots=True)
class Tag:
    """Row of the tag table: its author, whether it calls a tool, and whether generation stops at its closing marker."""

    name: str
    author: Literal["model", "system"] = "model"
    is_tool: bool = False
    stop: bool = False

    @property
    def opening(self) -> str:
        """Marker that begins a block."""
        return f"<{self.name}>"

    @property
    def closing(self) -> str:
        """Marker that ends a block."""
        return f"</{self.name}>"


@dataclass(frozen=True, slots=True)
class Segment:
    """Piece of text with its markers. `start` and `end` are offsets in characters, or in token ids if stated."""

    kind: str
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """Tool call as written: the tool's tag and the stripped text between its markers."""

    tool: str
    argument: str


@dataclass(frozen=True)
class Dialect:
    """Tag dialect: a table of tags, and which tag may follow which (for validators; the engine does not enforce it)."""

    tags: tuple[Tag, ...]
    answer: str = "answer"
    successors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def by_name(self) -> dict[str, Tag]:
        """Tags by name."""
        return {tag.name: tag for tag in self.tags}

    @cached_property
    def tools(self) -> tuple[str, ...]:
        """Names of the tags that call a tool, in the order of the table."""
        return tuple(tag.name for tag in self.tags if tag.is_tool)

    @cached_property
    def stops(self) -> tuple[str, ...]:
        """Closing markers at which generation stops; they are kept in the text."""
        return tuple(tag.closing for tag in self.tags if tag.stop)

    @cached_property
    def markers(self) -> re.Pattern[str]:
        """Pattern of any marker of the table; group 1 is `/` for a closing one, group 2 the name."""
        return re.compile(f"<(/?)({'|'.join(re.escape(tag.name) for tag in self.tags)})>")

    @cached_property
    def read_markers(self) -> re.Pattern[str]:
        """Pattern of anything that a model may read as a marker: any letter case, with white space inside."""
        return re.compile(rf"<\s*/?\s*(?:{'|'.join(re.escape(tag.name) for tag in self.tags)})\s*>", re.IGNORECASE)

    @cached_property
    def closing_stops(self) -> re.Pattern[str]:
        """Pattern of any closing marker at which generation stops."""
        return re.compile("|".join(re.escape(stop) for stop in self.stops))

    def as_json(self) -> dict[str, object]:
        """Return the table as JSON-able data, for the environment's digest."""
        return {
            "tags": [[tag.name, tag.author, tag.is_tool, tag.stop] for tag in self.tags],
            "answer": self.answer,
            "successors": {name: list(after) for name, after in self.successors.items()},
        }


TOOL_DIALECT = Dialect(
    tags=(
        Tag("think"),
        Tag("python", is_tool=True, stop=True),
        Tag("search", is_tool=True, stop=True),
        Tag(RESULT, author="system"),
        Tag("answer", stop=True),
    ),
    successors={
        "think": ("python", "search", "answer"),
        "python": (RESULT,),
        "search": (RESULT,),
        RESULT: ("think",),
        "answer": (),
    },
)
"""Default dialect: think, call, read the result, think, answer."""


def cut_after_first_close(text: str, dialect: Dialect) -> str:
    """Drop everything after the first closing marker at which generation should have stopped."""
    match = dialect.closing_stops.search(text)
    return text[: match.end()] if match else text


def parse_call(text: str, dialect: Dialect) -> ParsedCall | None:
    """Return the call that ends a piece of model text, as left by `cut_after_first_close`; None if there is none.

    The argument is the text between the first opening marker and the closing one, stripped. Without an opening marker
    it is empty, and the tool reports it as invalid.
    """
    for name in dialect.tools:
        tag = dialect.by_name[name]
        if text.endswith(tag.closing):
            start = text.find(tag.opening)
            body = text[start + len(tag.opening) : -len(tag.closing)] if start >= 0 else ""
            return ParsedCall(name, body.strip())
    return None


def is_answer(text: str, dialect: Dialect) -> bool:
    """Return whether a piece of model text ends the rollout with an answer."""
    return text.endswith(dialect.by_name[dialect.answer].closing)


def neutralise(text: str, dialect: Dialect) -> str:
    """Return tool output with the `<` of every known marker replaced by `&lt;`; nothing else changes.

    A result can then neither end its own block nor forge a call or an answer, however the text is parsed again. This
    includes anything that a model would read as a marker: any letter case, full-width letters, or invisible characters
    inside.
    """
    return sub_first(dialect.read_markers, text, lambda _: "&lt;")


def result_block(text: str, dialect: Dialect, *, spaced: bool = False) -> str:
    """Wrap tool output in a result block; `spaced` puts a space before the block and newlines inside its markers."""
    tag = dialect.by_name[RESULT]
    inner = neutralise(text, dialect)
    return f" {tag.opening}\n{inner}\n{tag.closing}" if spaced else f"{tag.opening}{inner}{tag.closing}"


def tokenise(text: str, dialect: Dialect, *, model_text: bool = False) -> list[Segment]:
    """Split text into typed segments without gaps or overlaps; `start` and `end` are in characters.

    Any text is accepted:

    - A block of reasoning ends at its closing marker, before an opening marker, or before a closing marker at which
      generation stops.
    - Other blocks are opaque up to their own closing marker. Without one they end like a block of reasoning.
    - A closing marker of a tool or the answer without an opening one is a segment of its own. Other stray markers are
      text.
    - With `model_text`, a result block is text too: a model cannot write results.
    """
    segments: list[Segment] = []
    # Tags without a closing marker in the rest of the text. Searching for them at each marker would take quadratic
    # time.
    unclosed: set[str] = set()
    position = loose = 0
    while (match := dialect.markers.search(text, position)) is not None:
        tag = dialect.by_name[match[2]]
        end = _block_end(text, match, tag, dialect, unclosed)
        if end is None or (model_text and tag.author == "system"):
            position = match.end() if end is None else end
            continue
        _append(segments, TEXT, text, loose, match.start())
        _append(segments, tag.name, text, match.start(), end)
        position = loose = end
    _append(segments, TEXT, text, loose, len(text))
    return segments


def _append(segments: list[Segment], kind: str, text: str, start: int, end: int) -> None:
    if end > start:
        segments.append(Segment(kind, text[start:end], start, end))


def _block_end(text: str, match: re.Match[str], tag: Tag, dialect: Dialect, unclosed: set[str]) -> int | None:
    """Return the end of the block that begins at a marker; None if the marker begins none."""
    if match[1]:
        return match.end() if tag.stop else None
    if (tag.stop or tag.author == "system") and tag.name not in unclosed:
        closing = text.find(tag.closing, match.end())
        if closing >= 0:
            return closing + len(tag.closing)
        unclosed.add(tag.name)
    for other in dialect.markers.finditer(text, match.end()):
        if other[1] and other[2] == tag.name:
            return other.end()
        if not other[1] or dialect.by_name[other[2]].stop:
            return other.start()
    return len(text)


def render(segments: Iterable[Segment]) -> str:
    """Join segments into text: `render(tokenise(text)) == text`."""
    return "".join(segment.text for segment in segments)
