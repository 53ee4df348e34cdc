"""Read the conversation before a turn from the typed segments of a rollout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from treadle.agent.dialects.base import FRAME, RESULT
from treadle.core.answers.extraction import SYSTEM_KINDS


def conversation_before(
    first_messages: Sequence[Mapping[str, str]], segments: Sequence[Mapping[str, Any]], num_ids: int
) -> list[dict[str, str]]:
    """Return the messages before the turn that begins after `num_ids` ids: {role, content}, results inside turns.

    `segments` are those of the only token sequence of a rollout, whose `start` counts its ids.
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
