"""Withdraw an answer: turn everything after the last tool result into one unfinished thought."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from treadle.agent.dialects.base import RESULT
from treadle.agent.dialects.tags import TagDialect
from treadle.agent.prefix import Prefix
from treadle.datagen.operators.replies import THINK

if TYPE_CHECKING:
    from treadle.datagen.operators.context import OperatorContext


def reopen_thought(tail: str, dialect: TagDialect, thought: str) -> str:
    """Return the text after the last result, without markers, as one open thought that ends with `thought`.

    All words are kept. Markers at which the engine would act are removed, and the words around a removed marker do not
    form a new one. A call that was written but never run becomes plain words.
    """
    runs = re.compile(f"(?:{dialect.markers.pattern})+")
    words = runs.sub(_gap, tail)
    body = words.lstrip()
    space = words[: len(words) - len(body)]
    gap = "\n" if body and not body[-1].isspace() else ""
    return f"{space}{dialect.by_name[THINK].opening}{body}{gap}{thought}"


def _gap(match: re.Match[str]) -> str:
    """Return a newline for markers between words: without it `<se<think>arch>` would become a marker."""
    text, start, end = match.string, match.start(), match.end()
    between = start > 0 and end < len(text) and not text[start - 1].isspace() and not text[end].isspace()
    return "\n" if between else ""


def reopen_prefix(context: OperatorContext, thought: str) -> Prefix:
    """Return the parent as a prefix whose last part is an open thought that ends with `thought`.

    Everything up to the last result keeps its exact token ids.
    """
    segments = context.trajectory.segments
    end = max((index + 1 for index, segment in enumerate(segments) if segment.kind == RESULT), default=0)
    tail = "".join(segment.text for segment in segments[end:])
    return context.extend(context.prefix_of_segments(end), reopen_thought(tail, context.dialect, thought))
