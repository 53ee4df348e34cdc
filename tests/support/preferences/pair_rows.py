"""Rows of `preferences`, for tests that need no rollouts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

TALK = (("system", "Help."), ("user", "Hi"), ("assistant", "Which?"), ("user", "That"))


def pair_row(number: int, talk: Sequence[tuple[str, str]] = TALK, **columns: Any) -> dict[str, Any]:
    """Return a pair of two turns after a conversation; its prompt has one id more than `number`."""
    side = {"ids": [5, 6], "mask": [0, 1], "turns": [1]}
    return {
        "pair_key": f"p{number}",
        "kind": "turn",
        "question_key": f"q{number}",
        "dataset": "d",
        "environment": "default",
        "chosen_key": f"c{number}:0",
        "rejected_key": f"c{number}:1",
        "margin": 1.0,
        "hidden": False,
        "messages": json.dumps([{"role": role, "content": text} for role, text in talk]),
        "prompt_ids": [1] * (number + 1),
        "tokenizer_digest": "t",
        **{f"{name}_{key}": value for name in ("chosen", "rejected") for key, value in side.items()},
        "chosen_text": "yes",
        "rejected_text": "no",
        **columns,
    }
