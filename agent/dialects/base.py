"""Define what a dialect is: how the engine finds the end of a turn, and how a turn is read, written and checked.

A dialect is pure: it knows text, no ids, tools or limits. The engine uses nothing else about the text of a turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from treadle.agent.contract import Message, ModelTurn, TurnEnd

TEXT = "text"
"""Kind of a segment of model text outside all markers."""

RESULT = "result"
"""Kind of the segments with the result of a call inside the assistant's turn, which only the system writes."""

FRAME = "frame"
"""Kind of the segments with the control tokens that a chat template puts between messages."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Piece of text with its markers. `start` and `end` are offsets in characters, or in token ids if stated."""

    kind: str
    text: str
    start: int
    end: int


def render(segments: Iterable[Segment]) -> str:
    """Join segments into text."""
    return "".join(segment.text for segment in segments)


class Dialect(Protocol):
    """How the text of a turn is read and written."""

    @property
    def stops(self) -> tuple[str, ...]:
        """Strings at which generation stops; they are kept in the text."""
        ...

    def cut(self, text: str) -> str:
        """Drop everything after the first marker at which generation should have stopped."""
        ...

    def is_stopped(self, text: str) -> bool:
        """Return whether a text contains a marker at which generation stops."""
        ...

    def open_marker(self, text: str) -> str:
        """Return the stop marker that closes the block that is open at the end of a text; empty if there is none."""
        ...

    def read(self, text: str, number: int, ended: TurnEnd, *, is_empty: bool = False) -> ModelTurn:
        """Read a turn with its calls; `number` is that of the turn, and `is_empty` says that it added nothing."""
        ...

    def result(self, text: str) -> Message:
        """Return the message that shows the text of a call's result to the model; no text can forge a marker in it."""
        ...

    def segments(self, text: str) -> list[Segment]:
        """Split model text into segments without gaps or overlaps; offsets are in characters."""
        ...

    def is_call(self, segment: Segment) -> bool:
        """Return whether a segment is a complete call."""
        ...

    def is_acted_on(self, segment: Segment) -> bool:
        """Return whether the environment reacts to a segment by itself: a call or an answer that ends a turn."""
        ...

    def faults(self, segments: Sequence[Segment], calls: Sequence[tuple[str, str]]) -> list[str]:
        """Return codes of the rules that a trajectory breaks; `calls` are pairs (tool, status) of its ledger."""
        ...

    def as_json(self) -> dict[str, object]:
        """Return the dialect as JSON-able data, for the environment's digest."""
        ...
