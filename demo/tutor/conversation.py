"""Parse a prompt: system and user messages, and the tool calls and results in the open assistant turn."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from treadle.agent.chat_prompts import CONTINUE_BEGUN_MESSAGE, CONTINUE_MESSAGE
from treadle.agent.continuation import split_beginning
from treadle.demo.world_templates import recognise

_TURN_END = "<|im_end|>"
_TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>|\Z)", re.DOTALL)
_CALL = re.compile(
    r"<(?P<tool>search|python)>(?P<argument>.*?)</(?P=tool)>(?:\s*<result>(?P<result>.*?)</result>)?", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of the open turn. `result` is None if no result block follows it."""

    tool: str
    argument: str
    result: str | None


@dataclass(frozen=True, slots=True)
class Conversation:
    """Parsed prompt.

    Attributes:
        thought: Text of an unclosed think block, or None.
        messages: Roles and texts of the finished messages after the first one of the user.
        pictures: Pictures in the messages of a chat request, in their order.
    """

    system: str
    user: str
    calls: tuple[Call, ...] = ()
    thought: str | None = None
    turn: str = field(default="", repr=False)
    messages: tuple[tuple[str, str], ...] = ()
    pictures: tuple[bytes, ...] = ()


def read_prompt(prompt: str) -> Conversation:
    """Parse a prompt in ChatML. In any other text, the question is the first recognized line, else the last one."""
    turns = list(_TURN.finditer(prompt))
    if not turns:
        return _read_plain(prompt)
    system = next((turn[2] for turn in turns if turn[1] == "system"), "")
    user = next((turn for turn in turns if turn[1] == "user"), None)
    after = user.end() if user else 0
    assistant = next((turn for turn in turns if turn[1] == "assistant" and turn.start() >= after), None)
    # Everything after the first assistant turn belongs to it: a tool result may contain template markers.
    open_turn = prompt[assistant.start(2) :] if assistant else ""
    later = [(turn[1], turn[2]) for turn in turns if turn.start() >= after and turn[0].endswith(_TURN_END)]
    return _with_turn(system, user[2] if user else "", open_turn, later)


def read_messages(messages: Sequence[Mapping[str, str]]) -> Conversation:
    """Parse the messages of a chat request.

    All messages after the user's first one, except requests to continue, are joined to the text of the model's turn,
    which is not finished. If the user's first message gives the beginning of that turn (see `split_beginning`), the
    text starts with it, and the message is returned without it.
    """
    system = "\n".join(message["content"] for message in messages if message["role"] == "system")
    first = next((place for place, message in enumerate(messages) if message["role"] == "user"), len(messages))
    user, turn = split_beginning(messages[first]["content"]) if first < len(messages) else ("", "")
    pieces = [message["content"] for message in messages[first + 1 :]]
    turn += "".join([piece for piece in pieces if piece not in (CONTINUE_MESSAGE, CONTINUE_BEGUN_MESSAGE)])
    later = [(message["role"], message["content"]) for message in messages[first + 1 :]]
    return _with_turn(system, user, turn, later)


def _read_plain(prompt: str) -> Conversation:
    lines = prompt.splitlines() or [""]
    for number, line in enumerate(lines):
        if recognise(line.strip()) is not None:
            return _with_turn("\n".join(lines[:number]), line.strip(), "\n".join(lines[number + 1 :]))
    filled = [line for line in lines if line.strip()]
    return _with_turn("", filled[-1] if filled else "", "")


def read_calls(text: str) -> tuple[Call, ...]:
    """Return the tool calls of a text, each with the result block that follows it."""
    return tuple(
        Call(match["tool"], match["argument"].strip(), None if match["result"] is None else match["result"].strip())
        for match in _CALL.finditer(text)
    )


def _with_turn(system: str, user: str, turn: str, messages: Sequence[tuple[str, str]] = ()) -> Conversation:
    calls = read_calls(turn)
    _, opened, begun = turn.rpartition("<think>")
    thought = begun if opened and "</think>" not in begun else None
    return Conversation(system, user.strip(), calls, thought, turn, tuple(messages))
