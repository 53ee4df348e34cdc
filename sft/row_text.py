"""Hold the conversation of a fine-tuning row as text formats see it: its messages and tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

COLUMNS = ("messages", "tool_schemas")
"""Columns of `sft_rows` that a conversation is made of."""


@dataclass(frozen=True, slots=True)
class RowText:
    """Conversation of a row.

    Attributes:
        messages: As in the column `messages` of `sft_rows`, without the places of results and of what a trim left.
        tools: {name, description, parameters} of the tools that can be called natively.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]

    @classmethod
    def of(cls, row: Mapping[str, Any], *, results_apart: bool = False) -> RowText:
        """Return the conversation of a row of `sft_rows`.

        With `results_apart`, tool results inside a turn become messages of role `tool`, which split the turn.
        """
        messages: list[dict[str, Any]] = []
        for message in orjson.loads(row["messages"]):
            spans = message.pop("results", [])
            message.pop("num_carried_chars", None)
            messages += _split(message, spans) if results_apart else [message]
        return cls(messages, orjson.loads(row["tool_schemas"]))


def continues_trimmed(row: Mapping[str, Any]) -> bool:
    """Return whether a row begins with what a trim left of earlier turns, which only a mask keeps out of training."""
    return any(message.get("num_carried_chars") for message in orjson.loads(row["messages"]))


def _split(message: dict[str, Any], spans: list[list[int]]) -> Iterator[dict[str, Any]]:
    text, position = message["content"], 0
    for start, end in spans:
        if start > position:
            yield {**message, "content": text[position:start]}
        yield {"role": "tool", "content": text[start:end]}
        position = end
    if text[position:] or not spans:
        yield {**message, "content": text[position:]}
