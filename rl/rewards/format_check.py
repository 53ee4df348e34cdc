r"""Check a trajectory's format for the reward: strictly, or as loosely as the published program.

`strict` is the check of fine-tuning rows (`treadle.agent.dialects.tag_faults`), so that the policy is rewarded for the
format that it was fine-tuned on. `loose` has the five rules of the program published with arXiv 2601.06860, for
comparison. Both read typed segments: markers inside tool results do not count. Documented in
docs/behaviour/rewards.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from treadle.agent.dialects.base import FRAME, RESULT, Segment
from treadle.agent.dialects.tag_faults import format_faults
from treadle.agent.dialects.tags import TagDialect

FormatMode = Literal["strict", "loose"]

LOOSE_FAULTS = {
    "no_think": "there is no thought marker",
    "think_unbalanced": "the numbers of opening and closing thought markers differ",
    "answer_count": "there is not exactly one closed answer",
    "call_without_result": "a call is not closed, or no result follows it",
    "boxed_count": r"the answer has no `\boxed{`, or no `}`",
}
"""Code -> description, in the order in which faults are returned; the codes are those of the strict check."""

_THINK = "think"


def format_reasons(segments: Sequence[Segment], dialect: TagDialect, mode: FormatMode = "strict") -> tuple[str, ...]:
    """Return the codes of the format rules that a trajectory breaks; empty if its format is good."""
    return tuple(format_faults(segments, dialect) if mode == "strict" else loose_faults(segments, dialect))


def loose_faults(segments: Sequence[Segment], dialect: TagDialect) -> list[str]:
    """Return the codes of LOOSE_FAULTS that apply, in their order.

    Accepts what the published program accepts: text after the answer, thoughts closed before they open, results without
    a call, and a result of one tool for the call of another.
    """
    text = _skeleton(segments, dialect)
    think, answer = dialect.by_name[_THINK], dialect.by_name[dialect.answer]
    faults = set()
    if think.opening not in text:
        faults.add("no_think")
    if text.count(think.opening) != text.count(think.closing):
        faults.add("think_unbalanced")
    start, end = text.find(answer.opening), text.find(answer.closing)
    if text.count(answer.opening) != 1 or text.count(answer.closing) != 1 or end < start:
        faults.add("answer_count")
    elif r"\boxed{" not in text[start:end] or "}" not in text[start:end]:
        faults.add("boxed_count")
    if not all(_calls_have_results(text, tool, dialect) for tool in dialect.tools):
        faults.add("call_without_result")
    return [code for code in LOOSE_FAULTS if code in faults]


def _skeleton(segments: Sequence[Segment], dialect: TagDialect) -> str:
    """Return the model's text with each tool result as an empty block and the model's own result markers removed.

    A removed marker leaves a NUL character, so that the text around it cannot form another marker.
    """
    result = dialect.by_name[RESULT]
    block = result.opening + result.closing
    forged = re.compile(f"{re.escape(result.opening)}|{re.escape(result.closing)}")
    return "".join(
        block if part.kind == RESULT else forged.sub("\0", part.text) for part in segments if part.kind != FRAME
    )


def _calls_have_results(text: str, tool: str, dialect: TagDialect) -> bool:
    """Return whether each opening marker of a tool is followed by its closing marker and then by a result."""
    tag, result = dialect.by_name[tool], dialect.by_name[RESULT]
    position = 0
    while (start := text.find(tag.opening, position)) >= 0:
        position = start
        for marker in (tag.closing, result.opening, result.closing):
            position = text.find(marker, position)
            if position < 0:
                return False
    return True
