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


def closing_block(text: str, name: str) -> str:
    """What stands in the block `<name>…</name>` that a text ends with, thoughts aside; all of the text without a tag.

    Of several the last counts. One that is not closed, or that something follows, stays with its tags: no word.
    """
    said = text.rpartition("</think>")[2].strip()
    _, opening, rest = said.rpartition(f"<{name}>")
    inside, closing, behind = rest.partition(f"</{name}>")
    return inside if opening and closing and not behind else said
