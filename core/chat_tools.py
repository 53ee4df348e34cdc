"""Find out what a chat template does with tools: their schemas, calls of the model, and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from treadle.core.errors import ConfigError

_NAME = "look_up_9f3"
_QUESTION = {"role": "user", "content": "What is it?"}
_RESULT = "It is 40617."
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "Look something up.",
        "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
    },
}


def numbered_call_id(number: int) -> str:
    """Return the id of a call in a written conversation, by its number from 1.

    It has the nine letters and digits that Mistral's templates demand, and other services accept.
    """
    return f"call{number:05d}"


@dataclass(frozen=True, slots=True)
class ToolSupport:
    """What a chat template does with tools.

    Attributes:
        writes_tools: Whether it writes the schemas of tools.
        call_example: What it writes for a turn that calls `look_up_9f3` with key = "a b"; empty if it drops calls.
        writes_results: Whether it writes messages of role `tool`.
        opens_reasoning: Whether it begins the model's turn with `<think>`, so that only the end is in its text.
        writes_system: Whether it writes a system message.
    """

    writes_tools: bool
    call_example: str
    writes_results: bool
    opens_reasoning: bool
    writes_system: bool


class ToolTokenizer(Protocol):
    """Part of `treadle.core.chat.ChatTokenizer` that this module uses."""

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, open_turn: bool = True, tools: Sequence[Mapping[str, Any]] = ()
    ) -> str:
        """Return the messages as text."""
        ...


def find_tool_support(tokenizer: ToolTokenizer) -> ToolSupport:
    """Try the template with a tool, a call and its result."""
    plain = _rendered(tokenizer, [_QUESTION], ())
    opens_reasoning = plain.rstrip().endswith("<think>")
    writes_system = _RESULT in _rendered(tokenizer, [{"role": "system", "content": _RESULT}, _QUESTION], ())
    writes_results = _writes_result(tokenizer)
    with_tool = _rendered(tokenizer, [_QUESTION], [_TOOL])
    if _NAME not in with_tool or with_tool == plain:
        return ToolSupport(False, "", writes_results, opens_reasoning, writes_system)
    call = {"id": numbered_call_id(1), "type": "function", "function": {"name": _NAME, "arguments": {"key": "a b"}}}
    turn = {"role": "assistant", "content": "", "tool_calls": [call]}
    whole = _rendered(tokenizer, [_QUESTION, turn], [_TOOL], open_turn=False)
    before = _rendered(tokenizer, [_QUESTION], [_TOOL], open_turn=False)
    # Schemas may come after the question; they are no example of a call.
    example = whole.removeprefix(before) if before and whole.startswith(before) else ""
    return ToolSupport(
        True, example if _NAME in example else "", _writes_result(tokenizer), opens_reasoning, writes_system
    )


def _writes_result(tokenizer: ToolTokenizer) -> bool:
    messages = [_QUESTION, {"role": "assistant", "content": "Let me see."}, {"role": "tool", "content": _RESULT}]
    return _RESULT in _rendered(tokenizer, messages, ())


def _rendered(
    tokenizer: ToolTokenizer,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    *,
    open_turn: bool = True,
) -> str:
    """Return the rendered messages; empty if the template refuses them."""
    try:
        return tokenizer.render(messages, open_turn=open_turn, tools=tools)
    except ConfigError:
        return ""
