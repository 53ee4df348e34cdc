"""What a judge said, read strictly: one of the words that were asked for, or nothing."""

from __future__ import annotations

import re

_AROUND = r"[\s*_`\"'“”‘’()\[\].:,#>-]*"


def said_word(text: str, words: tuple[str, ...]) -> str | None:
    """The word that a text consists of, in lower case; None if it is anything but one of `words`.

    Letter case, white space, quotes and emphasis around it do not matter, nor do thoughts that end in `</think>`.
    """
    pattern = rf"{_AROUND}({'|'.join(words)})!?{_AROUND}"
    match = re.fullmatch(pattern, text.rpartition("</think>")[2], re.IGNORECASE)
    return None if match is None else match[1].lower()
