"""Write the conversation formats of LLaMA-Factory, and read ShareGPT back.

LLaMA-Factory's converter expects messages of the user and of the model in alternation. So all messages between two
turns of the model are joined into one; tool results are joined with the separator of LLaMA-Factory's own OpenAI reader.
The converter finds calls and reasoning by markers. So a call is written as JSON without `<`, and markers in the text
before it are escaped.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from treadle.agent.dialects.forms.hermes import CLOSING, OPENING, HermesForm, write_call
from treadle.core.chat_tools import numbered_call_id
from treadle.core.untrusted.lookalikes import sub_first
from treadle.sft.row_text import RowText

TAGS = {"user": "human", "tool": "observation", "assistant": "gpt", "function": "function_call"}
"""LLaMA-Factory's name of a speaker -> value of the key `from`."""

_BETWEEN_RESULTS = "\n</tool_response>\n<tool_response>\n"
"""Separator of results that LLaMA-Factory itself uses for templates of the Qwen family."""
_THINK, _THINK_END = "<think>\n", "\n</think>\n\n"
_REASONING = re.compile(rf"{_THINK}(.*?){_THINK_END}", re.DOTALL)
_MARKERS = HermesForm.markers

_Message = Mapping[str, Any]


def sharegpt_record(text: RowText) -> dict[str, Any]:
    """Return the ShareGPT record of a row.

    `original` has messages and tools as JSON if they cannot be read back from the other keys, because messages were
    joined or markers escaped; otherwise it is empty.
    """
    system, turns = _alternating(text.messages)
    record = {
        "conversations": [{"from": TAGS[side], "value": value} for side, value in turns],
        "system": system,
        "tools": _tools_text(text),
        "original": "",
    }
    if read_sharegpt(record) != text:
        record["original"] = orjson.dumps({"messages": text.messages, "tools": text.tools}).decode()
    return record


def alpaca_record(text: RowText) -> dict[str, Any]:
    """Return the Alpaca record of a row; the format has no roles for calls, so they are text, as in Hermes and Qwen."""
    system, turns = _alternating(text.messages, with_functions=False)
    texts = [value for _, value in turns]
    *history, (asked, answer) = zip(texts[::2], texts[1::2], strict=True)
    return {
        "instruction": system,
        "input": asked,
        "output": answer,
        "history": [list(pair) for pair in history],
        "tools": _tools_text(text),
    }


def _tools_text(text: RowText) -> str:
    """Return the tools as JSON; LLaMA-Factory's default template fails without `properties`."""
    tools = [{**tool, "parameters": {"type": "object", "properties": {}, **tool["parameters"]}} for tool in text.tools]
    return orjson.dumps(tools).decode() if tools else ""


def _alternating(messages: Sequence[_Message], *, with_functions: bool = True) -> tuple[str, list[tuple[str, str]]]:
    """Return the system message, and (side, text) of the messages, in which user and model alternate.

    A side is a key of `TAGS`.
    """
    num_system = next((place for place, one in enumerate(messages) if one["role"] != "system"), len(messages))
    system = "\n\n".join(message["content"] for message in messages[:num_system])
    turns: list[tuple[str, str]] = []
    for is_model, group in itertools.groupby(messages[num_system:], lambda one: one["role"] == "assistant"):
        said = list(group)
        if is_model and not turns:
            turns.append(("user", ""))
        if not is_model:
            turns.append(_replies(said))
        elif with_functions and len(said) == 1 and said[0].get("tool_calls"):
            turns.append(("function", _function_text(said[0])))
        else:
            turns.append(("assistant", "\n\n".join(map(_turn_text, said))))
    return system, turns


def _replies(said: Sequence[_Message]) -> tuple[str, str]:
    if all(message["role"] == "tool" for message in said):
        results = [_escaped(message["content"]) for message in said]
        return "tool", _BETWEEN_RESULTS.join(results)
    return "user", "\n\n".join(message["content"] for message in said)


def _escaped(text: str) -> str:
    """Return a text in which markers of calls and results are escaped."""
    return sub_first(_MARKERS, text, lambda _: "&lt;")


def _turn_text(message: _Message) -> str:
    """Return a turn as text, with calls in the format of Hermes."""
    calls = [write_call(call["name"], call["arguments"]) for call in message.get("tool_calls", ())]
    text = [message["content"]] if message["content"] or not calls else []
    return _reasoning_text(message.get("reasoning", "")) + "\n".join([*text, *calls])


def _reasoning_text(reasoning: str) -> str:
    return f"{_THINK}{reasoning}{_THINK_END}" if reasoning else ""


def _function_text(message: _Message) -> str:
    """Return a turn with calls as text: reasoning in markers, then the calls as JSON.

    If the turn has other text, it comes before the JSON, which then is in markers too.
    """
    calls = [
        f'{{"name": {orjson.dumps(call["name"]).decode()}, "arguments": {call["arguments"]}}}'
        for call in message["tool_calls"]
    ]
    # In JSON, `<` occurs only inside strings, in which the escape has the same meaning.
    data = (calls[0] if len(calls) == 1 else f"[{', '.join(calls)}]").replace("<", "\\u003c")
    reasoning, content = message.get("reasoning", ""), message["content"]
    if not content and "</think>" not in reasoning and OPENING not in reasoning:
        return _reasoning_text(reasoning) + data
    head = _reasoning_text(_escaped(reasoning)) + (f"{_escaped(content)}\n" if content else "")
    return f"{head}{OPENING}\n{data}\n{CLOSING}"


# Reading.


def read_sharegpt(record: Mapping[str, Any]) -> RowText:
    """Return the conversation in a ShareGPT record; raise ValueError, KeyError or TypeError if it is invalid."""
    if record["original"]:
        original = orjson.loads(record["original"])
        return RowText(original["messages"], original["tools"])
    tools = orjson.loads(record["tools"]) if record["tools"] else []
    messages = [{"role": "system", "content": record["system"]}] if record["system"] else []
    return RowText([*messages, *_read_turns(record["conversations"], is_native=bool(tools))], tools)


def _read_turns(turns: Sequence[_Message], *, is_native: bool) -> Iterator[dict[str, Any]]:
    numbers = itertools.count(1)
    unanswered: list[str] = []
    for turn in turns:
        side, value = turn["from"], turn["value"]
        if side == TAGS["tool"]:
            for result in value.split(_BETWEEN_RESULTS):
                answered = {"tool_call_id": unanswered.pop(0)} if unanswered else {}
                yield {"role": "tool", "content": result, **answered}
            continue
        unanswered = []
        if side == TAGS["user"]:
            yield {"role": "user", "content": value}
        elif side == TAGS["assistant"]:
            reasoning, content = _split_reasoning(value) if is_native else ({}, value)
            yield {"role": "assistant", "content": content, **reasoning}
        else:
            message = _read_function(value)
            for call in message["tool_calls"]:
                call["id"] = numbered_call_id(next(numbers))
            unanswered = [call["id"] for call in message["tool_calls"]]
            yield message


def _split_reasoning(value: str) -> tuple[dict[str, str], str]:
    found = _REASONING.match(value)
    return ({"reasoning": found[1]}, value[found.end() :]) if found else ({}, value)


def _read_function(value: str) -> dict[str, Any]:
    head, marker, data = value.partition(OPENING)
    if not marker:
        head, data = "", value
    reasoning, rest = _split_reasoning(head or data)
    if marker:
        content, data = rest.removesuffix("\n"), data.removesuffix(CLOSING)
    else:
        content, data = "", rest
    calls = orjson.loads(data)
    return {
        "role": "assistant",
        "content": content,
        **reasoning,
        "tool_calls": [
            {"name": call["name"], "arguments": orjson.dumps(call["arguments"]).decode()}
            for call in (calls if isinstance(calls, list) else [calls])
        ],
    }
