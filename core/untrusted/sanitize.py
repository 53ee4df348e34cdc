"""Make untrusted text (of models, data sets, servers, users) safe to print in a terminal or a log."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Any

import orjson

# Control characters except tab and newline, direction marks, line separators, surrogates and tag characters.
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff"
    r"\U000e0000-\U000e007f]"
)


_CONTROLS = re.compile(f"({_CONTROL.pattern}+)")


def sanitize(text: str) -> str:
    """Replace control characters and direction marks by their escapes, so that text cannot drive a terminal."""
    return _CONTROL.sub(lambda match: _escape(match.group()), text)


def sanitized_parts(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the non-empty pieces of the sanitized text, each with whether it is an escape rather than literal text."""
    for place, part in enumerate(_CONTROLS.split(text)):
        if part:
            yield (_escape(part), True) if place % 2 else (part, False)


def _escape(characters: str) -> str:
    return characters.encode("unicode_escape").decode()


def one_line(text: str) -> str:
    """Return `sanitize` text on one line, with each run of white space replaced by one space."""
    return sanitize(" ".join(text.split()))


def sanitized_json(value: Any, *, indent: bool = False) -> str:
    """Return JSON with such characters written as escapes, so that parsing it restores them unchanged."""
    text = orjson.dumps(value, option=orjson.OPT_INDENT_2 if indent else None).decode()
    return _CONTROL.sub(lambda match: _json_escape(match.group()), text)


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[place : place + 4]}" for place in range(0, len(units), 4))


class SanitizingFormatter(logging.Formatter):
    """A formatter of log lines that are safe to print; continuation lines are indented, so no record can be forged."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        return sanitize(super().format(record)).replace("\n", "\n    ")
