"""Define the conversation of a fine-tuning row, its messages and tools, from which text formats are written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

COLUMNS = ("messages", "tool_schemas")
"""Columns of `sft_rows` from which a conversation is made."""


@dataclass(frozen=True, slots=True)
class RowText:
    """Conversation of a row.

    Attributes:
        messages: Messages as in the column `messages` of `sft_rows`, without `results` and `num_carried_chars`.
        tools: {name, description, parameters} of each tool that can be called natively.
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
    """Return whether a row continues a trimmed context: a mask must keep text of earlier turns from training."""
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
