"""Find the spans of a tag in a whole text, and name what is wrong with its markers."""

from __future__ import annotations

import re

OBSERVATION = "observation"
"""Name of the tag around results by default."""

TextSpan = tuple[int, int]
"""Start and end in characters."""


def tag_spans(text: str, word: str = OBSERVATION) -> list[TextSpan]:
    """Return the spans of a tag, each from its opening marker to the end of the white space behind its closing one.

    The white space belongs to the runtime, which writes it after each result. A tag that is not closed goes to the
    end of the text. Takes linear time.
    """
    opening, closing = f"<{word}>", f"</{word}>"
    spans, position = [], 0
    while (start := text.find(opening, position)) >= 0:
        end = text.find(closing, start + len(opening))
        position = len(text) if end < 0 else end + len(closing)
        while position < len(text) and text[position].isspace():
            position += 1
        spans.append((start, position))
    return spans


def tag_fault(text: str, word: str = OBSERVATION) -> str:
    """Return the code of the first fault in the markers of a tag; empty if there is none.

    `unbalanced`: an opening or closing marker alone. `nested`: an opening marker inside the tag. `odd_marker`: a
    spelling that only looks like a marker, in other letters or with white space. Takes linear time.
    """
    is_open = False
    for match in re.finditer(rf"<[ \t]*(/?)[ \t]*{re.escape(word)}[ \t]*>", text, re.IGNORECASE):
        if match[0] not in (f"<{word}>", f"</{word}>"):
            return "odd_marker"
        if is_open == (not match[1]):
            return "nested" if is_open else "unbalanced"
        is_open = not is_open
    return "unbalanced" if is_open else ""


def names_tag(text: str, word: str = OBSERVATION) -> bool:
    """Return whether a text has a marker of a tag in any spelling."""
    return re.search(rf"<[ \t]*/?[ \t]*{re.escape(word)}\b", text, re.IGNORECASE) is not None
