"""Show a rollout without its earlier thoughts, with a hint to think in the message that the model reads next."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from treadle.agent.dialects.base import FRAME, REASONING, RESULT, Segment
from treadle.agent.trimming import num_read
from treadle.core.answers.extraction import SYSTEM_KINDS

THOUGHT_KINDS = frozenset({REASONING, "think"})
"""Kinds of the segments with thoughts."""
_OPEN, _CLOSE = "<think>", "</think>"
_THOUGHT = re.compile(rf"{_OPEN}(?:(?!{_OPEN}).)*?(?:{_CLOSE}\s*|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class View:
    """Segments that a request shows.

    Attributes:
        kept: Numbers of these segments.
        texts: Texts that replace those of segments, by the number of the segment.
    """

    kept: Sequence[int]
    texts: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LinearThink:
    """Rule that leaves out earlier thoughts and adds a hint to the last message before each call of the model."""

    hint: str

    def view(self, segments: Sequence[Segment]) -> View:
        """Return what the next request shows of all segments so far."""
        kept, texts = [], {}
        unread = num_read(segments)
        last = max((place for place, one in enumerate(segments) if place >= unread and one.kind != FRAME), default=None)
        for place, one in enumerate(segments):
            text = one.text
            if one.kind not in SYSTEM_KINDS:
                text = without_thoughts(one.text, is_thought=one.kind in THOUGHT_KINDS)
            elif place == last:
                text = _with_hint(one, self.hint)
            if not text and one.text:
                continue
            kept.append(place)
            if text != one.text:
                texts[place] = text
        return View(kept, texts)


def without_thoughts(text: str, *, is_thought: bool = False) -> str:
    """Return model text without its thoughts; with `is_thought`, the whole text is a thought.

    If the prompt has opened the thought, the marker that closes it stays.
    """
    close = text.find(_CLOSE)
    if close >= 0 and _OPEN not in text[:close]:
        rest = close + len(_CLOSE)
        return text[close:rest] + ("" if is_thought else _THOUGHT.sub("", text[rest:]))
    return "" if is_thought else _THOUGHT.sub("", text)


def _with_hint(message: Segment, hint: str) -> str:
    """Return the text of a message with the hint at its end, inside the markers of a result."""
    if not hint:
        return message.text
    end = message.text.rfind("</") if message.kind == RESULT else -1
    return f"{message.text}\n\n{hint}" if end < 0 else f"{message.text[:end]}\n\n{hint}\n{message.text[end:]}"
