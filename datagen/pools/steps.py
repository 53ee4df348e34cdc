"""Split a trajectory into steps, the unit of all edits: the model's text up to a call, the call, and its result.

Everything after the last result is the last step (arXiv 2601.06860). Steps are numbered from 1.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from treadle.agent.dialects.base import RESULT, Segment

# Matches anywhere in a line and with separators, because a model may read any of these as a heading.
_HEADING = re.compile(r"(?<!#)#{4,}+(?=[\W_]{0,8}step)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Attributes:
        text: Text in the trajectory.
        first_segment: Index of its first segment.
        end_segment: Index after its last segment.
        has_result: Whether it ends with a result; only the last step may not.
    """

    text: str
    first_segment: int
    end_segment: int
    has_result: bool


def steps_of(segments: Sequence[Segment]) -> list[Step]:
    """Split typed segments into steps; whitespace after the last result is not a step."""
    steps: list[Step] = []
    start = 0
    for index, segment in enumerate(segments):
        if segment.kind == RESULT:
            steps.append(_step(segments, start, index + 1, True))
            start = index + 1
    if "".join(segment.text for segment in segments[start:]).strip():
        steps.append(_step(segments, start, len(segments), False))
    return steps


def _step(segments: Sequence[Segment], start: int, end: int, has_result: bool) -> Step:
    return Step("".join(segment.text for segment in segments[start:end]), start, end, has_result)


def numbered(texts: Sequence[str]) -> str:
    """Return the steps for a prompt, each under its heading; headings inside a step are escaped."""
    marked = [_HEADING.sub(r"\\\g<0>", text.strip()) for text in texts]
    return "\n".join(f"#### Step {number}: {text}" for number, text in enumerate(marked, 1))
