"""Check whether a trajectory follows its dialect, with one fault code per rule; used by rewards and row selection.

All checks use typed segments and the ledger. Text is never searched for words: a document that mentions an error, or
quotes a tag, breaks no rule. Rules: arXiv 2601.06860 (answers in one box, thoughts closed, each call with its result)
and docs/behaviour/sft_rows.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from treadle.agent.dialects.base import FRAME, RESULT, TEXT, Segment
from treadle.agent.dialects.tag_table import TagTable
from treadle.core.answers.extraction import SYSTEM_KINDS, closing_brace

FORMAT_FAULTS = {
    "bad_start": "the turn does not begin with `<think>`",
    "bad_end": "the turn does not end with `</answer>`",
    "no_think": "there is no `<think>` block",
    "think_unbalanced": "a `<think>` block is not closed, or not opened",
    "answer_count": "there is not exactly one answer, opened and closed",
    "call_markers": "a call without its opening or closing marker, or with another marker inside it",
    "call_without_result": "a call is not directly followed by its result",
    "order": "a block, or text outside of blocks, at a place that the dialect does not allow",
    "boxed_count": r"the answer does not hold exactly one `\boxed{`, closed again",
    "marker_in_answer": "the answer contains a marker",
}
"""Description of each format fault by its code, in the order in which faults are reported."""

CALL_FAULTS = {
    "result_error": "a tool reported an error",
    "result_timeout": "a tool ran out of time",
    "result_invalid": "a call had no usable argument",
    "result_empty": "a tool found or printed nothing",
    "call_refused": "a call over the limit was not run",
    "ledger_differs": "the calls in the text are not those that were made",
}
"""Description of each call fault by its code."""

_OF_STATUS = {
    "error": "result_error",
    "timeout": "result_timeout",
    "invalid": "result_invalid",
    "empty": "result_empty",
    "refused": "call_refused",
}
_BOX = re.compile(r"\\boxed\s{0,8}\{")
_THINK = "think"
_MESSAGES = SYSTEM_KINDS - {RESULT, FRAME}


def format_faults(segments: Sequence[Segment], dialect: TagTable) -> list[str]:
    """Return the codes of FORMAT_FAULTS that apply to a turn, in that order; white space between blocks is allowed.

    After a message between two turns of a dialogue, the same tags may follow as after a result; messages at the end are
    ignored. Rules about thoughts and the answer apply to tables with these tags. A table without `successors` has no
    rules.
    """
    if not dialect.successors:
        return []
    blocks = [
        segment
        for segment in segments
        if segment.kind != FRAME and (segment.kind != TEXT or not segment.text.isspace())
    ]
    while blocks and blocks[-1].kind in _MESSAGES:
        blocks.pop()
    faults = _edge_faults(blocks, dialect)
    faults |= _think_faults(blocks) if _THINK in dialect.by_name else set()
    faults |= _answer_faults(blocks, dialect) if dialect.answer in dialect.by_name else set()
    faults |= _call_faults(blocks, dialect)
    faults |= _order_faults(blocks, dialect)
    return [code for code in FORMAT_FAULTS if code in faults]


def call_faults(segments: Sequence[Segment], calls: Sequence[tuple[str, str]], dialect: TagTable) -> list[str]:
    """Return the codes of CALL_FAULTS that apply to the calls of a turn, in that order.

    `calls` are pairs (tool, status) from the ledger. For a table without `successors` only the statuses are checked,
    because its environment may leave calls out of the ledger.
    """
    faults = {_OF_STATUS[status] for _, status in calls if status in _OF_STATUS}
    if not dialect.successors:
        return [code for code in CALL_FAULTS if code in faults]
    written = []
    for segment in segments:
        if segment.kind == RESULT:
            if _result_text(segment.text, dialect) == "":
                faults.add("result_empty")
        elif segment.kind in dialect.tools and segment.text.endswith(dialect.by_name[segment.kind].closing):
            written.append(segment.kind)
    if written != [tool for tool, _ in calls]:
        faults.add("ledger_differs")
    return [code for code in CALL_FAULTS if code in faults]


def _edge_faults(blocks: Sequence[Segment], dialect: TagTable) -> set[str]:
    think, answer = dialect.by_name.get(_THINK), dialect.by_name.get(dialect.answer)
    faults = set()
    if think is not None and not (blocks and blocks[0].text.startswith(think.opening)):
        faults.add("bad_start")
    if answer is None:
        return faults
    if not blocks or blocks[-1].kind != answer.name or not blocks[-1].text.endswith(answer.closing):
        faults.add("bad_end")
    return faults


def _think_faults(blocks: Sequence[Segment]) -> set[str]:
    """Return faults of thought blocks. Markers inside other blocks are content and do not count."""
    opened = closed = thoughts = 0
    for block in blocks:
        if block.kind == _THINK:
            thoughts += 1
            opened += block.text.count("<think>")
            closed += block.text.count("</think>")
        elif block.kind == TEXT:
            opened += block.text.count("<think>")
            closed += block.text.count("</think>")
    faults = {"no_think"} if not thoughts else set()
    if opened != closed or any(block.kind == _THINK and not block.text.endswith("</think>") for block in blocks):
        faults.add("think_unbalanced")
    return faults


def _answer_faults(blocks: Sequence[Segment], dialect: TagTable) -> set[str]:
    tag = dialect.by_name[dialect.answer]
    answers = [block.text for block in blocks if block.kind == tag.name]
    whole = [text for text in answers if text.startswith(tag.opening) and text.endswith(tag.closing)]
    if len(answers) != 1 or len(whole) != 1:
        return {"answer_count"}
    inner = whole[0][len(tag.opening) : -len(tag.closing)]
    faults = set()
    boxes = list(_BOX.finditer(inner))
    if len(boxes) != 1 or closing_brace(inner, boxes[0].end()) < 0:
        faults.add("boxed_count")
    if dialect.markers.search(inner) is not None:
        faults.add("marker_in_answer")
    return faults


def _call_faults(blocks: Sequence[Segment], dialect: TagTable) -> set[str]:
    faults = set()
    for index, block in enumerate(blocks):
        if block.kind not in dialect.tools:
            continue
        tag = dialect.by_name[block.kind]
        inner = block.text.removeprefix(tag.opening).removesuffix(tag.closing)
        if len(inner) + len(tag.opening) + len(tag.closing) != len(block.text) or dialect.markers.search(inner):
            faults.add("call_markers")
        if index + 1 == len(blocks) or blocks[index + 1].kind != RESULT:
            faults.add("call_without_result")
    return faults


def _order_faults(blocks: Sequence[Segment], dialect: TagTable) -> set[str]:
    """Return the fault `order` if blocks are out of order; a call without its result has a code of its own."""
    for index, block in enumerate(blocks):
        if block.kind == TEXT or (block.kind == _THINK and len(dialect.markers.findall(block.text)) > 2):
            return {"order"}
        # Reported as `call_without_result`.
        if index and blocks[index - 1].kind in dialect.tools and block.kind != RESULT:
            continue
        if not index or block.kind in _MESSAGES:
            continue
        before = blocks[index - 1].kind
        if block.kind not in dialect.successors.get(RESULT if before in _MESSAGES else before, ()):
            return {"order"}
    return set()


def _result_text(text: str, dialect: TagTable) -> str:
    tag = dialect.by_name.get(RESULT)
    inner = text.strip()
    return inner if tag is None else inner.removeprefix(tag.opening).removesuffix(tag.closing).strip()
