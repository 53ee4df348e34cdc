"""Text of models, data sets and users on its way to a terminal."""

from __future__ import annotations

import re

# Control characters without tab and newline, marks that turn the direction of writing or break lines, tag characters.
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff"
    r"\U000e0000-\U000e007f]"
)


def harmless(text: str) -> str:
    """Replace control characters and direction marks by their escapes, so that text cannot drive a terminal."""
    return _CONTROL.sub(lambda match: match.group().encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """The same, with white space of any kind as one blank."""
    return harmless(" ".join(text.split()))
