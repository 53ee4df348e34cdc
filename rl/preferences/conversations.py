"""Read the conversation before a turn from the typed segments of a rollout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from treadle.agent.dialects.base import FRAME, RESULT
from treadle.core.answers.extraction import SYSTEM_KINDS


def conversation_before(
    first_messages: Sequence[Mapping[str, str]], segments: Sequence[Mapping[str, Any]], num_ids: int
) -> list[dict[str, str]]:
    """Return the messages {role, content} before the turn that begins after `num_ids` token ids.

    Tool results are part of the assistant's messages. `segments` are those of a rollout with a single token sequence;
    the `start` of a segment is its place in that sequence.
    """
    messages = [dict(message) for message in first_messages]
    is_open = False
    for segment in segments:
        if segment["start"] >= num_ids or segment["kind"] == FRAME:
            continue
        if segment["kind"] in SYSTEM_KINDS - {RESULT}:
            messages.append({"role": segment["kind"], "content": segment["text"]})
            is_open = False
        elif is_open:
            messages[-1]["content"] += segment["text"]
        else:
            messages.append({"role": "assistant", "content": segment["text"]})
            is_open = True
    return messages
