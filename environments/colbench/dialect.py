"""Read what an agent writes to the person: private thoughts, the message that is shown, and the final answer.

Paper: arXiv 2503.15478 (ColBench). Rules: docs/guides/colbench.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from treadle.agent.contract import ModelTurn
from treadle.agent.dialects.base import ANSWER, PRIVATE, TEXT, Segment
from treadle.agent.dialects.free import FreeDialect

SHOWN = "OUTPUT:"
"""Marker of the visible part: text before the first such marker is private, and a second marker ends this part."""
FINAL = "I WANT TO ANSWER:"
"""The text behind this marker, up to a second one, is the final answer."""
_FENCE = "```"


@dataclass(frozen=True, slots=True)
class Reading:
    """Offsets of the parts of one turn's text, in characters.

    Attributes:
        text: The text.
        start: Start of the visible part, behind `OUTPUT:`.
        end: End of the visible part; the rest of the text is dropped.
        final: Start of `I WANT TO ANSWER:` in the visible part; None without an answer.
    """

    text: str
    start: int
    end: int
    final: int | None

    @property
    def visible(self) -> str:
        """What the person is shown."""
        return self.text[self.start : self.end]

    @property
    def stored(self) -> str:
        """Private thoughts and visible part, without the dropped text after them."""
        return self.text[: self.end]

    @property
    def answer(self) -> str | None:
        """The final answer, with its white space; None without one."""
        if self.final is None:
            return None
        return self.text[self.final + len(FINAL) : self.end].partition(FINAL)[0]

    def segments(self) -> list[Segment]:
        """Return the parts of the text without gaps or overlaps: private, shown, answer, dropped."""
        shown_end = self.end if self.final is None else self.final
        borders = [0, self.start, shown_end, self.end, len(self.text)]
        kinds = (PRIVATE, TEXT, ANSWER, PRIVATE)
        parts = zip(kinds, borders, borders[1:], strict=False)
        return [Segment(kind, self.text[start:end], start, end) for kind, start, end in parts if start < end]


def read_turn(text: str, *, legacy: bool = False) -> Reading:
    """Read a turn. With `legacy`, `OUTPUT:` is a marker everywhere, as in the published program.

    Otherwise `OUTPUT:` behind the marker of an answer is part of the answer, unless it is at the start of a line
    outside of fenced blocks: then it makes the text before it private.
    """
    final = text.find(FINAL)
    shown = text.find(SHOWN)
    if not legacy and final >= 0 and not 0 <= shown < final:
        shown = _shown_behind(text, final, shown)
        if shown < 0:
            return Reading(text, 0, len(text), final)
    start = shown + len(SHOWN) if shown >= 0 else 0
    final = text.find(FINAL, start)
    second = text.find(SHOWN, start) if shown >= 0 else -1
    if second < 0 or (not legacy and 0 <= final < second):
        return Reading(text, start, len(text), final if final >= 0 else None)
    if not legacy and final > second:
        return Reading(text, start, len(text), final)
    return Reading(text, start, second, final if 0 <= final < second else None)


def _shown_behind(text: str, final: int, shown: int) -> int:
    """Return the offset of the first `OUTPUT:` behind an answer's marker that starts a line outside of fenced blocks.

    Return -1 if there is none.
    """
    position, num_fences = final, 0
    while shown >= 0:
        before = text[position:shown]
        num_fences += before.count(_FENCE)
        _, newline, line = before.rpartition("\n")
        if newline and not line.strip() and num_fences % 2 == 0:
            return shown
        position, shown = shown, text.find(SHOWN, shown + 1)
    return -1


@dataclass(frozen=True)
class ColbenchDialect(FreeDialect):
    """Dialect of free text in which a marker begins the answer; see `treadle.agent.dialects.base.Dialect`.

    Attributes:
        legacy: Whether markers are read as in the published program.
    """

    legacy: bool = False

    def segments(self, text: str) -> list[Segment]:
        """See `Dialect`: private, shown and final parts."""
        return read_turn(text, legacy=self.legacy).segments()

    def has_answer(self, turn: ModelTurn) -> bool:
        """See `Dialect`."""
        return read_turn(turn.text, legacy=self.legacy).answer is not None

    def is_acted_on(self, segment: Segment) -> bool:
        """See `Dialect`."""
        return segment.kind == ANSWER

    def as_json(self) -> dict[str, object]:
        """See `Dialect`."""
        return {"colbench": {"legacy": self.legacy}}
