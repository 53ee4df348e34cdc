"""Define what a dialect is: how the engine finds the end of a turn, and how a turn is read, written and checked.

A dialect is pure: it handles text, but no token ids, tools or limits. The engine reads the text of a turn only through
its dialect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from treadle.core.answers.extraction import ANSWER, REASONING, TOOL_CALL

if TYPE_CHECKING:
    from typing import Self

    from treadle.agent.contract import Message, ModelTurn, TurnEnd
    from treadle.agent.tools.schema import ToolSchema
    from treadle.core.chat_tools import ToolSupport

__all__ = ["ANSWER", "FRAME", "PRIVATE", "REASONING", "RESULT", "TEXT", "TOOL_CALL", "Dialect", "Segment", "render"]

TEXT = "text"
"""Kind of a segment of model text outside all markers."""

RESULT = "result"
"""Kind of the segments with the result of a call inside the assistant's turn, which only the system writes."""

PRIVATE = "private"
"""Kind of a segment of model text that the partner of a dialogue is not shown."""

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


class HasToolSupport(Protocol):
    """Interface of a chat template that may render tools; `treadle.core.chat.ChatTokenizer` implements it."""

    @property
    def tool_support(self) -> ToolSupport:
        """What the template does with tools."""
        ...


class Dialect(Protocol):
    """Rules for reading and writing the text of a turn. Dialects derive from this class and inherit its defaults."""

    ends_every_turn: ClassVar[bool] = False
    """Whether each completion is a turn of its own; otherwise the next one continues it if there was no reaction."""

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
        """Read a turn with its calls; `number` is the turn's number; if `is_empty`, the turn added no text."""
        ...

    def has_answer(self, turn: ModelTurn) -> bool:
        """Return whether a turn ends the task with an answer."""
        return False

    def result(self, text: str, call: str = "") -> Message:
        """Return the message that shows the text of a call's result to the model; no text can forge a marker in it.

        `call` is the id of the call.
        """
        ...

    def bound(self, template: HasToolSupport | None, *, is_chat: bool) -> Self:
        """Return the dialect for a model with this chat template; with `is_chat` the service renders messages."""
        return self

    def facts(self) -> dict[str, str]:
        """Return facts about a bound dialect for the record of a stage."""
        return {}

    def tool_prompt(
        self, messages: Sequence[Mapping[str, str]], tools: Sequence[ToolSchema]
    ) -> tuple[Sequence[Mapping[str, str]], list[dict[str, Any]]]:
        """Return the messages before the first turn, and the tools to pass to the chat template or the service."""
        return messages, []

    def replies(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages of an environment in the form that the model's template takes."""
        return messages

    def added_tools(self, tools: Sequence[ToolSchema]) -> Message | None:
        """Return the message that tells the model of new tools; None if it is told in another way."""
        return None

    def segments(self, text: str) -> list[Segment]:
        """Split model text into segments without gaps or overlaps; offsets are in characters."""
        ...

    def is_call(self, segment: Segment) -> bool:
        """Return whether a segment is a complete call."""
        ...

    def is_acted_on(self, segment: Segment) -> bool:
        """Return whether the environment reacts to a segment: it is a complete call, or an answer that ends a turn."""
        ...

    def faults(self, segments: Sequence[Segment], calls: Sequence[tuple[str, str]]) -> list[str]:
        """Return codes of the rules that a trajectory breaks; `calls` are pairs (tool, status) of its ledger."""
        ...

    def as_json(self) -> dict[str, object]:
        """Return the dialect as JSON-able data, for the environment's digest."""
        ...
