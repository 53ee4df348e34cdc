"""Report violations of a planning agent's block order, for filters, metrics and rewards; nothing is enforced."""

from __future__ import annotations

import re
from collections.abc import Sequence

from treadle.agent.dialects.base import FRAME, RESULT, TEXT, Segment
from treadle.agent.dialects.tag_table import TagTable
from treadle.core.answers.extraction import SYSTEM_KINDS

VIOLATIONS = {
    "no_think": "a block that the model wrote does not follow a thought",
    "order": "a block stands where the dialect does not allow it",
    "unclosed": "a block is not closed",
    "text_outside": "text stands outside of blocks",
    "no_answer": "the last block is not a closed answer",
    "answer_count": "there is more than one answer",
    "released_unsure": "an answer follows a check of 1 or 2 points, or one without points",
    "poor_without_plan": "a reflection that calls something poor is not followed by a new plan",
}
"""Description of each violation by its code, in the order in which they are reported."""

_THINK = "think"
_SCORE = re.compile(r"\b([1-4])\b")
_POOR = re.compile(r"\bpoor\b", re.IGNORECASE)


def violations(segments: Sequence[Segment], table: TagTable) -> list[str]:
    """Return the codes of VIOLATIONS that apply to a trajectory, in that order; white space between blocks is allowed.

    Consecutive calls are one batch, which needs one thought; the thought before a plan covers the batch after it.
    """
    found: set[str] = set()
    before, thought, in_batch = "", False, False
    last = None
    blocks = [part for part in segments if part.kind not in SYSTEM_KINDS - {RESULT} and part.kind != FRAME]
    bodies: dict[str, str] = {}
    for block in blocks:
        if block.kind == TEXT:
            if block.text.strip():
                found.add("text_outside")
            continue
        if block.kind == RESULT:
            thought = in_batch = False
            continue
        last = block
        if not block.text.rstrip().endswith(table.by_name[block.kind].closing):
            found.add("unclosed")
        if block.kind == _THINK:
            thought = True
            continue
        in_batch = in_batch and block.kind in table.tools
        if not thought and not in_batch and _THINK in table.by_name:
            found.add("no_think")
        if block.kind not in table.successors.get(before, ()) and not in_batch:
            found.add("order")
        found |= _unsure(before, block.kind, bodies.get(before, ""))
        bodies[block.kind] = block.text
        before, thought = block.kind, thought and block.kind in (*table.tools, "plan")
        in_batch = block.kind in table.tools
    answers = [block for block in blocks if block.kind == table.answer]
    if last is None or last.kind != table.answer or not last.text.endswith(table.by_name[table.answer].closing):
        found.add("no_answer")
    if len(answers) > 1:
        found.add("answer_count")
    return [code for code in VIOLATIONS if code in found]


def _unsure(before: str, kind: str, text: str) -> set[str]:
    """Return the violation by a block of `kind` after a check or reflection (`before`) with this text, if any."""
    if before == "double_check" and kind == "answer":
        score = _SCORE.search(text)
        return set() if score is not None and int(score[1]) >= 3 else {"released_unsure"}
    if before == "reflection" and kind != "plan" and _POOR.search(text):
        return {"poor_without_plan"}
    return set()
