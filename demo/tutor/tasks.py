"""Detect which task of the data flywheel a prompt sets, by a few words of its system message.

The words are few and plain, because users may replace the prompt files; docs/behaviour/demo.md lists them.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

from treadle.demo.tutor.conversation import Conversation

Task = Literal["redundancy", "locate", "analyse", "replace", "reflect", "thoughts"]

_CUES: tuple[tuple[Task, str], ...] = (
    ("redundancy", r"(?=.*redundan)(?=.*corrected step)"),
    ("replace", r"(?=.*\blast step\b)(?=.*(?:\breplac|\bnew (?:last )?step\b))"),
    ("analyse", r"(?=.*\b(?:flaw|mistake))(?=.*\blast step\b)"),
    ("locate", r"(?=.*\b(?:flaw|mistake))(?=.*\bfirst\b)(?=.*\bstep:)"),
    ("reflect", r"(?=.*\breflect)"),
    ("thoughts", r"(?=.*\bthoughts\b)(?=.*(?:\bedit|\bshorten|\bcondens|\bfewer words\b))"),
)
"""All cues of a task must match; the first matching task is used."""

_BEGUN = re.compile(r"(?is)\A\s*step:\s*\[?\d+\]?\s*analysis:")


def guess_task(conversation: Conversation) -> Task:
    """Return the task of a conversation; if no cue matches, guess the most likely task."""
    task = task_in(conversation.system) or task_in(conversation.user[:4000])
    if task is not None:
        return task
    if _BEGUN.match(conversation.turn):
        return "analyse"
    return "redundancy" if "redundan" in f"{conversation.system}{conversation.user}".lower() else "locate"


@lru_cache(maxsize=64)
def task_in(text: str) -> Task | None:
    """Return the first task whose cues occur in a text, or None."""
    low = text.lower()
    return next((task for task, cues in _CUES if re.match(cues, low, re.DOTALL)), None)
