"""Write and read the messages of OpenAI's fine-tuning API, with native tool calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treadle.sft.row_text import RowText

_TOOL_NAME = "tool"
"""Name of user messages with tool results that answer no native call; the API has no other form for these."""


def openai_record(text: RowText) -> dict[str, Any]:
    """Return the OpenAI record of a row: `messages`, and `tools` if there are any."""
    messages = [openai_message(message) for message in text.messages]
    for message in messages:
        if message["role"] == "tool" and "tool_call_id" not in message:
            message |= {"role": "user", "name": _TOOL_NAME}
    tools = list(map(tool_of, text.tools))
    return {"messages": messages, **({"tools": tools} if tools else {})}


def tool_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool schema in the format of chat services and chat templates."""
    return {"type": "function", "function": schema}


def openai_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message in chat services' format, with reasoning in `reasoning_content`, as in vLLM and templates."""
    made = {"role": message["role"], "content": message["content"]}
    if reasoning := message.get("reasoning"):
        made["reasoning_content"] = reasoning
    if calls := message.get("tool_calls"):
        made["content"] = message["content"] or None
        made["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for call in calls
        ]
    if identity := message.get("tool_call_id"):
        made["tool_call_id"] = identity
    return made


def read_openai(record: Mapping[str, Any]) -> RowText:
    """Return the conversation in an OpenAI record; raise KeyError or TypeError if the record is invalid."""
    tools = [dict(tool["function"]) for tool in record.get("tools", ())]
    return RowText([_row_message(message) for message in record["messages"]], tools)


def _row_message(message: Mapping[str, Any]) -> dict[str, Any]:
    role = "tool" if message.get("name") == _TOOL_NAME and message["role"] == "user" else message["role"]
    made: dict[str, Any] = {"role": role, "content": message["content"] or ""}
    if reasoning := message.get("reasoning_content"):
        made["reasoning"] = reasoning
    if calls := message.get("tool_calls"):
        made["tool_calls"] = [{"id": call["id"], **call["function"]} for call in calls]
    if identity := message.get("tool_call_id"):
        made["tool_call_id"] = identity
    return made
