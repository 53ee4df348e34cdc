r"""Find the prediction in what an agent wrote.

Only text that the agent wrote counts: a box inside a tool result is somebody else's answer. The input is therefore
either the segments of a trajectory, of which results are left out, or text that is known to be the agent's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

ANSWER_OPEN = "<answer>"
ANSWER_CLOSE = "</answer>"
RESULT_KIND = "result"

# Bounded repetitions keep the scan linear on hostile text such as a million backslashes.
_BRACE = re.compile(r"\\{1,4}(?P<box>boxed|fbox)\s{0,8}\{|\\.|(?P<open>\{)|(?P<close>\})", re.DOTALL)


def extract_prediction(segments: Iterable[Mapping[str, Any]]) -> str:
    """The prediction of a trajectory, given as segments with `kind` and `text`; empty where there is none.

    The text between two results is searched as one piece; nothing can begin before a result and end after it.
    """
    pieces: list[list[str]] = [[]]
    for segment in segments:
        if segment["kind"] == RESULT_KIND:
            pieces.append([])
        else:
            pieces[-1].append(segment["text"])
    return _extract(["".join(texts) for texts in pieces])


def extract_answer(text: str) -> str:
    r"""The prediction in agent-written text: last answer block, then last balanced `\boxed{…}` or `\fbox{…}`.

    A block without a box is the prediction as a whole; without a block the last box anywhere is. A box that never
    closes is no answer. `\text{…}` around a boxed answer is taken off once. The result has no outer white space.
    """
    return _extract([text])


def _extract(pieces: list[str]) -> str:
    for piece in reversed(pieces):
        block = _last_block(piece)
        if block:
            box = last_box(block)
            return block if box is None else box
    for piece in reversed(pieces):
        box = last_box(piece)
        if box:
            return box
    return ""


def _last_block(text: str) -> str:
    end = text.rfind(ANSWER_CLOSE)
    start = text.rfind(ANSWER_OPEN, 0, end) if end >= 0 else -1
    return text[start + len(ANSWER_OPEN) : end].strip() if start >= 0 else ""


def last_box(text: str) -> str | None:
    r"""Content of the last balanced `\boxed{…}`, else of the last `\fbox{…}`.

    None if the text has no box at all; empty if it has boxes and none of them closes. Escaped braces (`\{`) do not
    count as braces. One pass, linear in the text.
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
    r"""Take one `\command{…}` off, if it spans the whole text; otherwise the text unchanged."""
    for command in commands:
        prefix = f"\\{command}{{"
        if text.startswith(prefix) and text.endswith("}") and closing_brace(text, len(prefix)) == len(text) - 1:
            return text[len(prefix) : -1]
    return text


def closing_brace(text: str, start: int) -> int:
    """Index of the brace that closes the one opened just before `start`; -1 if there is none."""
    depth = 1
    for match in _BRACE.finditer(text, start):
        if match["box"] or match["open"]:
            depth += 1
        elif match["close"]:
            depth -= 1
            if depth == 0:
                return match.start()
    return -1
