"""Read and write turns with native tool calls, in the form of the model's family.

The episode sees the same calls and writes the same messages whatever the form. How the model learns about its
tools depends on the model that the dialect is bound to: from its chat template, a system message, or the service.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from treadle.agent.contract import Call, Message, ModelTurn, TurnEnd, call_id
from treadle.agent.dialects.base import ANSWER, REASONING, TEXT, TOOL_CALL, Dialect, HasToolSupport, Segment
from treadle.agent.dialects.forms.base import CallText, ToolForm
from treadle.agent.dialects.forms.hermes import HermesForm, added_text, response_text, system_text
from treadle.agent.dialects.forms.llama import LlamaForm
from treadle.agent.tools.schema import ToolSchema
from treadle.core.untrusted.lookalikes import sub_first

HERMES = HermesForm()
FORMS: tuple[ToolForm, ...] = (HERMES, LlamaForm())
"""Forms that templates are compared with."""

_THINK, _THINK_END = "<think>", "</think>"


@dataclass(frozen=True)
class FunctionsDialect(Dialect):
    """Dialect of native tool calls; see `treadle.agent.dialects.base.Dialect`.

    Attributes:
        form: How calls are written in the text.
        told_by: How the model learns about its tools: from its chat `template`, from a `message` that is written here,
            or from the `service`, which gets the tools with each request.
        has_tool_role: Whether results are messages of role `tool`; otherwise they are written into a user message.
        opens_reasoning: Whether the prompt begins the model's turn with `<think>`; None if that is not known.
        has_system_role: Whether the template takes system messages; otherwise the message about tools is put at the
            beginning of the first user message.
    """

    ends_every_turn: ClassVar[bool] = True

    form: ToolForm = HERMES
    told_by: Literal["template", "message", "service"] = "message"
    has_tool_role: bool = False
    opens_reasoning: bool | None = None
    has_system_role: bool = True

    def bound(self, template: HasToolSupport | None, *, is_chat: bool) -> FunctionsDialect:
        """See `Dialect`."""
        if is_chat:
            return replace(self, form=HERMES, told_by="service", has_tool_role=True)
        if template is None:
            return self
        support = template.tool_support
        told = replace(self, opens_reasoning=support.opens_reasoning, has_system_role=support.writes_system)
        known = [form for form in FORMS if support.writes_tools and form.is_written_in(support.call_example)]
        if not known:
            return told
        return replace(told, form=known[0], told_by="template", has_tool_role=support.writes_results)

    def facts(self) -> dict[str, str]:
        """See `Dialect`."""
        if self.told_by == "service":
            return {"tool_calls": "by the chat service; results are messages of role tool"}
        message = "system message" if self.has_system_role else "first message"
        place = "chat template" if self.told_by == "template" else message
        results = "messages of role tool" if self.has_tool_role else "a user message"
        return {
            "tool_calls": f"form {self.form.name}, schemas in the {place}, results in {results}; tools that are added "
            "during an episode are told in a user message"
        }

    @property
    def stops(self) -> tuple[str, ...]:
        """Empty: the model ends its turn itself."""
        return ()

    def cut(self, text: str) -> str:
        """Return the text."""
        return text

    def is_stopped(self, text: str) -> bool:
        """Return False: the model ends its turn itself."""
        return False

    def open_marker(self, text: str) -> str:
        """Return an empty string: no marker ends a turn."""
        return ""

    def read(self, text: str, number: int, ended: TurnEnd, *, is_empty: bool = False) -> ModelTurn:
        """See `Dialect`."""
        numbers: Counter[str] = Counter()
        calls = []
        for found in self.calls_of(text):
            identity = call_id(number, found.name, numbers[found.name])
            calls.append(Call(identity, found.name, found.arguments, found.error))
            numbers[found.name] += 1
        return ModelTurn(text, number, ended, is_empty, tuple(calls))

    def has_answer(self, turn: ModelTurn) -> bool:
        """Return whether the model ended a turn that calls no tool and says something."""
        return turn.ended == "end_of_turn" and any(segment.kind == ANSWER for segment in self.segments(turn.text))

    def result(self, text: str, call: str = "") -> Message:
        """See `Dialect`; a result is a message of role `tool`."""
        return Message(sub_first(self.form.markers, text, lambda _: "&lt;"), "tool", call)

    def segments(self, text: str) -> list[Segment]:
        """See `Dialect`; text of a turn that begins no call is the answer."""
        position = self._reasoning_end(text)
        segments = [Segment(REASONING, text[:position], 0, position)] if position else []
        kind = TEXT if self.form.begins_call(text[position:]) else ANSWER
        for call in self._calls_after(text, position):
            _append(segments, TEXT, text, position, call.start)
            _append(segments, TOOL_CALL, text, call.start, call.end)
            position = call.end
        _append(segments, kind if text[position:].strip() else TEXT, text, position, len(text))
        return segments

    def calls_of(self, text: str) -> list[CallText]:
        """Return the calls in the text of a turn; text inside its reasoning is never a call."""
        return self._calls_after(text, self._reasoning_end(text))

    def _calls_after(self, text: str, position: int) -> list[CallText]:
        return [
            replace(call, start=call.start + position, end=call.end + position)
            for call in self.form.find(text[position:])
        ]

    def _reasoning_end(self, text: str) -> int:
        """Return the offset after the reasoning that begins a turn, and the white space behind it; 0 without any.

        Templates may open the block in the prompt, so that only its end is in the text. If it is not known whether the
        template did so, a closing marker inside an argument of a call does not end reasoning.
        """
        place = text.find(_THINK_END)
        is_opened = self.opens_reasoning or text.lstrip().startswith(_THINK)
        if place < 0:
            return len(text) if is_opened else 0
        if not is_opened and (self.opens_reasoning is False or self._is_argument(text, place)):
            return 0
        end = place + len(_THINK_END)
        return len(text) - len(text[end:].lstrip())

    def _is_argument(self, text: str, place: int) -> bool:
        return any(call.start < place < call.end and not call.error for call in self.form.find(text))

    def is_call(self, segment: Segment) -> bool:
        """See `Dialect`."""
        return segment.kind == TOOL_CALL

    def is_acted_on(self, segment: Segment) -> bool:
        """See `Dialect`."""
        return segment.kind in (TOOL_CALL, ANSWER)

    def faults(self, segments: Sequence[Segment], calls: Sequence[tuple[str, str]]) -> list[str]:
        """See `Dialect`; the only code is `invalid_call`."""
        return ["invalid_call"] if any(status == "invalid" for _, status in calls) else []

    def tool_prompt(
        self, messages: Sequence[Mapping[str, str]], tools: Sequence[ToolSchema]
    ) -> tuple[Sequence[Mapping[str, str]], list[dict[str, Any]]]:
        """See `Dialect`."""
        if not tools:
            return messages, []
        if self.told_by != "message":
            return messages, [tool.as_openai() for tool in tools]
        told = system_text(tools)
        if messages and messages[0]["role"] == "system":
            first, *others = messages
            return [{**first, "content": f"{first['content']}\n\n{told}".lstrip()}, *others], []
        if self.has_system_role or not messages:
            return [{"role": "system", "content": told}, *messages], []
        first, *others = messages
        return [{**first, "content": f"{told}\n\n{first['content']}"}, *others], []

    def replies(self, messages: Sequence[Message]) -> Sequence[Message]:
        """See `Dialect`; if the template has no role for results, the results of a turn are one user message."""
        if self.has_tool_role:
            return messages
        found: list[Message] = []
        results: list[str] = []
        for message in [*messages, None]:
            if message is not None and message.role == "tool":
                results.append(response_text(message.text))
                continue
            if results:
                found.append(Message("\n".join(results)))
                results = []
            if message is not None:
                found.append(message)
        return found

    def added_tools(self, tools: Sequence[ToolSchema]) -> Message | None:
        """See `Dialect`; a service gets new tools with the next request instead."""
        return None if self.told_by == "service" else Message(added_text(tools))

    def as_json(self) -> dict[str, object]:
        """See `Dialect`; the form follows from the model."""
        return {"functions": 1}


def _append(segments: list[Segment], kind: str, text: str, start: int, end: int) -> None:
    if end > start:
        segments.append(Segment(kind, text[start:end], start, end))


def opens_thought(text: str) -> bool:
    """Return whether a text begins a thought and does not end it."""
    return text.lstrip().startswith(_THINK) and _THINK_END not in text


def bare_reasoning(text: str) -> str:
    """Return reasoning without its markers; templates may open it in the prompt."""
    return text.strip().removeprefix(_THINK).removesuffix(_THINK_END).strip()
