"""Text of models, data sets, servers and users on its way to a terminal or a log."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Any

import orjson

# Control characters without tab and newline, marks that turn the direction of writing or break lines, tag characters.
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff"
    r"\U000e0000-\U000e007f]"
)


_CONTROLS = re.compile(f"({_CONTROL.pattern}+)")


def harmless(text: str) -> str:
    """Replace control characters and direction marks by their escapes, so that text cannot drive a terminal."""
    return _CONTROL.sub(lambda match: _escape(match.group()), text)


def harmless_parts(text: str) -> Iterator[tuple[str, bool]]:
    """The same in pieces, none empty, each with whether it is escapes: these can then be told from what looks alike."""
    for place, part in enumerate(_CONTROLS.split(text)):
        if part:
            yield (_escape(part), True) if place % 2 else (part, False)


def _escape(characters: str) -> str:
    return characters.encode("unicode_escape").decode()


def one_line(text: str) -> str:
    """The same, with white space of any kind as one blank."""
    return harmless(" ".join(text.split()))


def harmless_json(value: Any, *, indent: bool = False) -> str:
    """JSON in which such characters stand as escapes, so that reading it gives them back unchanged."""
    text = orjson.dumps(value, option=orjson.OPT_INDENT_2 if indent else None).decode()
    return _CONTROL.sub(lambda match: _json_escape(match.group()), text)


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[place : place + 4]}" for place in range(0, len(units), 4))


class HarmlessFormatter(logging.Formatter):
    """Log lines that are safe to show; only the first line of a record begins at the margin, so none can be forged."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        return harmless(super().format(record)).replace("\n", "\n    ")
