"""Build the messages of fine-tuning rows from typed segments: turns, native calls with their results, other messages.

The format is that of the column `messages` of `sft_rows`. Text and structure come from segments, never from a second
reading of the whole text, so that no result can pass for a call. Documented in docs/behaviour/sft_rows.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from treadle.agent.dialects.base import FRAME, REASONING, RESULT, TOOL_CALL, Dialect, Segment
from treadle.agent.dialects.forms.base import CallText
from treadle.agent.dialects.forms.hermes import response_text
from treadle.agent.dialects.forms.llama import PYTHON_TAG
from treadle.agent.dialects.functions import FORMS, FunctionsDialect, bare_reasoning
from treadle.agent.dialects.tags import TagDialect
from treadle.agent.token_ids import ORIGIN_SAMPLED
from treadle.core.answers.extraction import SYSTEM_KINDS
from treadle.core.chat_tools import numbered_call_id

_BETWEEN_CALLS = re.compile(rf"(?:{re.escape(PYTHON_TAG)}|[\s;,])*")
"""Text next to calls that only separates them."""
_RESPONSE = re.compile(re.escape(response_text("\0")).replace("\0", "(.*?)"), re.DOTALL)


def messages_of(segments: Sequence[Segment], origins: bytes, dialect: Dialect) -> list[dict[str, Any]]:
    """Return the turns of the model and the messages between them, up to the last turn of the model.

    A turn in which the model sampled only its end is an empty message; in text mode such a turn leaves no trace.
    """
    ends = [place for place, segment in enumerate(segments, 1) if _is_of_model(segment, origins)]
    builder = _Builder(dialect)
    for segment in segments[: ends[-1]] if ends else ():
        if segment.kind in SYSTEM_KINDS - {RESULT, FRAME}:
            builder.add_message(segment)
        elif segment.kind != FRAME or _is_of_model(segment, origins):
            builder.add_to_turn(segment)
    return builder.finished()


def _is_of_model(segment: Segment, origins: bytes) -> bool:
    """Return whether the model wrote a segment: text of its own, or control tokens that end its turn."""
    if segment.kind == FRAME:
        return ORIGIN_SAMPLED in origins[segment.start : segment.end]
    return segment.kind not in SYSTEM_KINDS


class _Builder:
    """Builder of the messages of one row, from segments in their order.

    `_turn` has the segments of the open turn. `_unanswered` has an item for each call of the last turn whose result has
    not been seen: its id, or None for a malformed call, which is text.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._is_native = isinstance(dialect, FunctionsDialect)
        self._has_reasoning = not isinstance(dialect, TagDialect) or REASONING not in dialect.by_name
        self._messages: list[dict[str, Any]] = []
        self._turn: list[Segment] | None = None
        self._unanswered: list[str | None] = []
        self._num_calls = 0

    def add_to_turn(self, segment: Segment) -> None:
        if self._turn is None:
            self._close_calls()
            self._turn = []
        if segment.kind != FRAME:
            self._turn.append(segment)

    def add_message(self, segment: Segment) -> None:
        self._close_turn()
        results = list(self._results(segment))
        if not results:
            self._close_calls()
            self._messages.append({"role": segment.kind, "content": segment.text})
        for text in results:
            self._messages.append(_tool_message(text, self._unanswered.pop(0) if self._unanswered else None))

    def finished(self) -> list[dict[str, Any]]:
        self._close_turn()
        return self._messages

    def _results(self, segment: Segment) -> Iterator[str]:
        """Yield the tool results in a message; templates without a role for results put all those of a turn in one."""
        if segment.kind == "tool":
            yield segment.text
        elif segment.kind == "user" and self._unanswered:
            found = _RESPONSE.findall(segment.text)
            # Markers in tool results are escaped, so the markers in a message of this form are never part of a result.
            if len(found) == len(self._unanswered) and segment.text == "\n".join(map(response_text, found)):
                yield from found

    def _close_calls(self) -> None:
        """Add an empty result for each call without one: services refuse a conversation with an unanswered call."""
        self._messages += [_tool_message("", call) for call in self._unanswered if call is not None]
        self._unanswered = []

    def _close_turn(self) -> None:
        if self._turn is None:
            return
        segments, self._turn = self._turn, None
        reasoning = [bare_reasoning(one.text) for one in segments if self._is_reasoning(one)]
        spoken = [one for one in segments if not self._is_reasoning(one)]
        found = [calls_in(one.text) if self._is_native and one.kind == TOOL_CALL else [] for one in spoken]
        self._unanswered = [None if one.error else self._next_id() for calls in found for one in calls]
        message: dict[str, Any] = {"role": "assistant", "content": "".join(one.text for one in spoken)}
        if any(reasoning):
            message["reasoning"] = "\n\n".join(filter(None, reasoning))
        calls = [one for calls in found for one in calls if not one.error]
        if calls:
            message["content"] = _text_next_to_calls(spoken, found)
            ids = [call for call in self._unanswered if call is not None]
            message["tool_calls"] = [
                {"id": identity, "name": one.name, "arguments": orjson.dumps(one.arguments).decode()}
                for identity, one in zip(ids, calls, strict=True)
            ]
        elif results := list(_result_spans(spoken)):
            message["results"] = results
        self._messages.append(message)

    def _next_id(self) -> str:
        self._num_calls += 1
        return numbered_call_id(self._num_calls)

    def _is_reasoning(self, segment: Segment) -> bool:
        return segment.kind == REASONING and self._has_reasoning


def calls_in(text: str) -> list[CallText]:
    """Return the calls in the text of a segment, by the first known format that finds any.

    The format that the model was trained on is not known here.
    """
    return next(filter(None, (form.find(text) for form in FORMS)), [])


def _tool_message(text: str, call: str | None) -> dict[str, Any]:
    return {"role": "tool", "content": text, **({"tool_call_id": call} if call else {})}


def _text_next_to_calls(segments: Sequence[Segment], found: Sequence[Sequence[CallText]]) -> str:
    """Return the text of a turn without its calls and the white space around them; malformed calls count as text."""
    pieces = [
        one.text.strip()
        for one, calls in zip(segments, found, strict=True)
        if not any(not call.error for call in calls) and not _BETWEEN_CALLS.fullmatch(one.text)
    ]
    return "\n".join(pieces)


def _result_spans(segments: Sequence[Segment]) -> Iterator[list[int]]:
    """Yield start and end of each result inside a turn, in characters of its text."""
    position = 0
    for segment in segments:
        end = position + len(segment.text)
        if segment.kind == RESULT:
            yield [position, end]
        position = end
