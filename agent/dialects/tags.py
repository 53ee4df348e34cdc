"""Read and write turns with tags: typed segments and calls from text, and result blocks.

All that the agent writes is one flat text. Tags are data (a `TagDialect`), so another set of tags is another table.
This module only reads text; what happened in a rollout is recorded in the ledger. Rules: docs/behaviour/agent.md; the
five tags are those of arXiv 2601.06860.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from treadle.agent.contract import Call, Message, ModelTurn, TurnEnd, call_id
from treadle.agent.dialects.base import RESULT, TEXT, Dialect, Segment
from treadle.agent.dialects.tag_faults import call_faults, format_faults
from treadle.agent.dialects.tag_table import Tag, TagTable
from treadle.core.errors import ConfigError
from treadle.core.untrusted.lookalikes import sub_first


@dataclass(frozen=True)
class TagDialect(TagTable, Dialect):
    """Dialect of tags; see `treadle.agent.dialects.base.Dialect`."""

    def cut(self, text: str) -> str:
        """See `Dialect`."""
        return cut_after_first_close(text, self)

    def is_stopped(self, text: str) -> bool:
        """See `Dialect`."""
        return self.closing_stops.search(text) is not None

    def open_marker(self, text: str) -> str:
        """See `Dialect`."""
        pieces = self.segments(text)
        tag = self.by_name.get(pieces[-1].kind) if pieces else None
        return tag.closing if tag is not None and tag.stop else ""

    def read(self, text: str, number: int, ended: TurnEnd, *, is_empty: bool = False) -> ModelTurn:
        """See `Dialect`."""
        return ModelTurn(text, number, ended, is_empty, parse_calls(text, number, ended, self))

    def has_answer(self, turn: ModelTurn) -> bool:
        """See `Dialect`."""
        return turn.ended == "stop" and is_answer(turn.text, self)

    def result(self, text: str, call: str = "") -> Message:
        """See `Dialect`."""
        return Message(result_block(text, self, spaced=self.spaced), "block")

    def segments(self, text: str) -> list[Segment]:
        """See `Dialect`."""
        return tokenise(text, self, model_text=True)

    def is_call(self, segment: Segment) -> bool:
        """See `Dialect`."""
        return segment.kind in self.tools and segment.text.endswith(self.by_name[segment.kind].closing)

    def is_acted_on(self, segment: Segment) -> bool:
        """See `Dialect`."""
        return self.is_call(segment) or (
            segment.kind == self.answer and segment.text.endswith(self.by_name[self.answer].closing)
        )

    def faults(self, segments: Sequence[Segment], calls: Sequence[tuple[str, str]]) -> list[str]:
        """See `Dialect`; the codes are those of `treadle.agent.dialects.tag_faults`."""
        return [*format_faults(segments, self), *call_faults(segments, calls, self)]


TOOL_DIALECT = TagDialect(
    tags=(
        Tag("think"),
        Tag("python", is_tool=True, stop=True, parameter="code"),
        Tag("search", is_tool=True, stop=True, parameter="query"),
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
SPACED_TOOL_DIALECT = replace(TOOL_DIALECT, spaced=True)
"""Default dialect with white space around results."""


def require_tags(dialect: Dialect, what: str) -> TagDialect:
    """Return the dialect if it has tags; otherwise raise ConfigError, which names `what`, the part that needs tags."""
    if not isinstance(dialect, TagDialect):
        raise ConfigError(f"{what} needs an environment whose dialect has tags, such as `question`")
    return dialect


def cut_after_first_close(text: str, dialect: TagDialect) -> str:
    """Drop everything after the first closing marker at which generation should have stopped."""
    match = dialect.closing_stops.search(text)
    return text[: match.end()] if match else text


def parse_calls(text: str, number: int, ended: TurnEnd, dialect: TagDialect) -> tuple[Call, ...]:
    """Return the calls of a turn: complete calls whose tags do not stop generation, then the call that stopped it.

    The last one exists if the turn ended by a stop at the closing marker of a tool. It begins at the first opening
    marker of that tool; without one its argument is empty, and the tool reports it as invalid. The argument of each
    call is the text between its markers, stripped.
    """
    last = _last_body(text, dialect) if ended == "stop" else None
    if dialect.every_call_stops:  # the usual case, once per turn of thousands of rollouts
        return () if last is None else (_call(number, 0, *last),)
    found = _unstopped_bodies(text, dialect) + ([last] if last is not None else [])
    numbers: Counter[str] = Counter()
    calls = []
    for tag, body in found:
        calls.append(_call(number, numbers[tag.name], tag, body))
        numbers[tag.name] += 1
    return tuple(calls)


def _call(turn: int, number: int, tag: Tag, body: str) -> Call:
    return Call(call_id(turn, tag.name, number), tag.name, {tag.parameter: body.strip()})


def _unstopped_bodies(text: str, dialect: TagDialect) -> list[tuple[Tag, str]]:
    """Return tag and inner text of each complete call whose tag does not stop generation."""
    pieces = [(dialect.by_name[piece.kind], piece.text) for piece in dialect.segments(text) if dialect.is_call(piece)]
    return [(tag, text[len(tag.opening) : -len(tag.closing)]) for tag, text in pieces if not tag.stop]


def _last_body(text: str, dialect: TagDialect) -> tuple[Tag, str] | None:
    """Return tag and inner text of the call whose closing marker stopped generation at the end of `text`, or None."""
    for name in dialect.tools:
        tag = dialect.by_name[name]
        if tag.stop and text.endswith(tag.closing):
            start = text.find(tag.opening)
            return tag, text[start + len(tag.opening) : -len(tag.closing)] if start >= 0 else ""
    return None


def is_answer(text: str, dialect: TagDialect) -> bool:
    """Return whether a piece of model text ends the rollout with an answer."""
    return text.endswith(dialect.by_name[dialect.answer].closing)


def neutralise(text: str, dialect: TagDialect) -> str:
    """Return tool output with the `<` of every known marker replaced by `&lt;`; nothing else changes.

    A result can then neither end its own block nor forge a call or an answer, however the text is parsed again. A
    marker here is anything that a model would read as one: in any letter case, with full-width letters, or with
    invisible characters inside.
    """
    return sub_first(dialect.read_markers, text, lambda _: "&lt;")


def result_block(text: str, dialect: TagDialect, *, spaced: bool = False) -> str:
    """Wrap tool output in a result block; `spaced` puts a space before the block and newlines inside its markers."""
    tag = dialect.by_name[RESULT]
    inner = neutralise(text, dialect)
    return f" {tag.opening}\n{inner}\n{tag.closing}" if spaced else f"{tag.opening}{inner}{tag.closing}"


def tokenise(text: str, dialect: TagDialect, *, model_text: bool = False) -> list[Segment]:
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
        tag = dialect.by_word[match[2]]
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


def _block_end(text: str, match: re.Match[str], tag: Tag, dialect: TagDialect, unclosed: set[str]) -> int | None:
    """Return the end of the block that begins at a marker; None if the marker begins none."""
    if match[1]:
        return match.end() if tag.stop else None
    if (tag.stop or tag.is_tool or tag.author == "system") and tag.name not in unclosed:
        closing = text.find(tag.closing, match.end())
        if closing >= 0:
            return closing + len(tag.closing)
        unclosed.add(tag.name)
    for other in dialect.markers.finditer(text, match.end()):
        if other[1] and other[2] == tag.marker_word:
            return other.end()
        if not other[1] or dialect.by_word[other[2]].stop:
            return other.start()
    return len(text)
