"""Read turns of free text: a dialogue without tags, in which a marker may end the episode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treadle.agent.contract import Message, ModelTurn, TurnEnd
from treadle.agent.dialects.base import TEXT, Dialect, Segment


@dataclass(frozen=True)
class FreeDialect(Dialect):
    """Dialect of free text; see `treadle.agent.dialects.base.Dialect`.

    Attributes:
        markers: Strings at which generation stops, for example one that ends the episode. A turn that stops at one has
            `ended = "stop"`; all others end when the model ends them.
    """

    markers: tuple[str, ...] = ()

    @property
    def stops(self) -> tuple[str, ...]:
        """See `Dialect`."""
        return self.markers

    def cut(self, text: str) -> str:
        """See `Dialect`."""
        ends = [at + len(marker) for marker in self.markers if (at := text.find(marker)) >= 0]
        return text[: min(ends)] if ends else text

    def is_stopped(self, text: str) -> bool:
        """See `Dialect`."""
        return any(marker in text for marker in self.markers)

    def open_marker(self, text: str) -> str:
        """Return an empty string: nothing in free text shows whether a marker or the model ended it."""
        return ""

    def read(self, text: str, number: int, ended: TurnEnd, *, is_empty: bool = False) -> ModelTurn:
        """See `Dialect`; a turn of free text has no calls."""
        return ModelTurn(text, number, ended, is_empty)

    def result(self, text: str, call: str = "") -> Message:
        """See `Dialect`; a result is a message of the conversation."""
        return Message(text)

    def segments(self, text: str) -> list[Segment]:
        """See `Dialect`; the whole text is one segment."""
        return [Segment(TEXT, text, 0, len(text))] if text else []

    def is_call(self, segment: Segment) -> bool:
        """See `Dialect`."""
        return False

    def is_acted_on(self, segment: Segment) -> bool:
        """See `Dialect`."""
        return segment.kind == TEXT and self.is_stopped(segment.text)

    def faults(self, segments: Sequence[Segment], calls: Sequence[tuple[str, str]]) -> list[str]:
        """See `Dialect`; free text breaks no rule."""
        return []

    def as_json(self) -> dict[str, object]:
        """See `Dialect`."""
        return {"free": list(self.markers)}
