r"""Find the prediction in the text of an agent.

Only text that the agent wrote counts: a box inside a tool result is not its answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

ANSWER_OPEN = "<answer>"
ANSWER_CLOSE = "</answer>"
SYSTEM_KINDS = frozenset({"result", "frame", "user", "tool", "system"})
"""Kinds of the segments that the model did not write; only the end-of-turn ids in a frame are sampled."""
REASONING = "reasoning"
"""Kind of the segments with reasoning that a service or template keeps apart from the answer."""
TOOL_CALL = "tool_call"
"""Kind of a segment that is one native tool call."""
ANSWER = "answer"
"""Kind of the segments with an answer."""
CANDIDATE = "suggested_answer"
"""Kind of the segments with an answer that the agent would give if it had to."""
BY_CANDIDATE = "answered_by_candidate"
"""Name of a part of an episode's outcome: 1 if the agent gave no answer and its last candidate is used instead, else 0.
"""

# Bounded repetitions keep the scan linear on hostile text such as a million backslashes.
_BRACE = re.compile(r"\\{1,4}(?P<box>boxed|fbox)\s{0,8}\{|\\.|(?P<open>\{)|(?P<close>\})", re.DOTALL)


def extract_prediction(segments: Iterable[Mapping[str, Any]]) -> str:
    r"""Return the prediction of a trajectory, given as segments with `kind` and `text`; empty if it has none.

    It is the first of these that exists:

    1. In the last `<answer>` block that is not empty: its last box, or the whole block if it has no box.
    2. In the last closed candidate that is not empty: the same.
    3. The last box anywhere.
    4. The last segment that is searched, if its kind is `answer` and it contains no `<answer>` or `</answer>`.

    The last box is the last balanced `\boxed{…}`, without one the last `\fbox{…}`; one `\text{…}` around its content is
    removed. A box that never closes is empty: a block, a candidate or a trajectory that has no other box has an empty
    prediction. The result has no outer white space.

    Native calls, reasoning, results and messages to the model are not searched. They divide the rest into pieces; a
    block or box counts only if it is within one piece.
    """
    pieces: list[list[str]] = [[]]
    plain = candidate = ""
    for segment in segments:
        kind, text = segment["kind"], segment["text"]
        if kind in SYSTEM_KINDS or kind in (REASONING, TOOL_CALL):
            pieces.append([])
            continue
        pieces[-1].append(text)
        if kind == CANDIDATE:
            candidate = candidate_of(text) or candidate
        plain = text if kind == ANSWER and ANSWER_OPEN not in text and ANSWER_CLOSE not in text else ""
    texts = ["".join(piece) for piece in reversed(pieces)]
    if block := next(filter(None, map(_last_block, texts)), candidate):
        box = last_box(block)
        return block if box is None else box
    boxes = [box for box in map(last_box, texts) if box is not None]
    return next(filter(None, boxes), "") if boxes else plain.strip()


def candidate_of(text: str) -> str:
    """Return the candidate answer in the text of its segment; empty if the block is not closed."""
    text, opening, closing = text.strip(), f"<{CANDIDATE}>", f"</{CANDIDATE}>"
    closed = text.startswith(opening) and text.endswith(closing)
    return text[len(opening) : -len(closing)].strip() if closed else ""


def _last_block(text: str) -> str:
    end = text.rfind(ANSWER_CLOSE)
    start = text.rfind(ANSWER_OPEN, 0, end) if end >= 0 else -1
    return text[start + len(ANSWER_OPEN) : end].strip() if start >= 0 else ""


def last_box(text: str) -> str | None:
    r"""Return the content of the last balanced `\boxed{…}`, else of the last `\fbox{…}`.

    Return None if the text has no box at all, and an empty text if it has only boxes that never close. Escaped braces
    (`\{`) do not count as braces. One pass, linear in the text.
    """
    found: dict[str, tuple[int, str]] = {}
    stack: list[tuple[str, int]] = []
    any_box = False
    for match in _BRACE.finditer(text):
        if match["box"]:
            any_box = True
            stack.append((match["box"], match.end()))
        elif match["open"]:
            stack.append(("", match.end()))
        elif match["close"] and stack:
            kind, start = stack.pop()
            if kind and start > found.get(kind, (-1, ""))[0]:
                found[kind] = (start, text[start : match.start()])
    if not any_box:
        return None
    _, content = found.get("boxed") or found.get("fbox") or (0, "")
    return unwrap_command(content.strip(), ("text",)).strip()


def unwrap_command(text: str, commands: tuple[str, ...]) -> str:
    r"""Remove one `\command{…}` that spans the whole text; return other texts unchanged."""
    for command in commands:
        prefix = f"\\{command}{{"
        if text.startswith(prefix) and text.endswith("}") and closing_brace(text, len(prefix)) == len(text) - 1:
            return text[len(prefix) : -1]
    return text


def closing_brace(text: str, start: int) -> int:
    """Return the index of the brace that closes the one opened just before `start`; -1 if there is none."""
    depth = 1
    for match in _BRACE.finditer(text, start):
        if match["box"] or match["open"]:
            depth += 1
        elif match["close"]:
            depth -= 1
            if depth == 0:
                return match.start()
    return -1
