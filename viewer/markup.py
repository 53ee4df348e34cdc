"""Escape text of models and data sets for HTML."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

from treadle.core.untrusted.sanitize import sanitize, sanitized_parts

_ESCAPES = Markup('<span class="escape">{}</span>')
_MARKS = Markup("<mark>{}</mark>")
_MIN_MARKED_CHARS = 2


def visible(text: str, wanted: str = "") -> Markup:
    """Escape text and show control characters and direction marks as highlighted escapes; keep tabs and newlines.

    Occurrences of `wanted` are highlighted regardless of case, unless it is a single character.
    """
    if len(wanted) < _MIN_MARKED_CHARS:
        return _escaped(text)
    pieces, done = [], 0
    for match in re.finditer(re.escape(wanted), text, re.IGNORECASE):
        pieces += [_escaped(text[done : match.start()]), _MARKS.format(_escaped(match[0]))]
        done = match.end()
    return Markup("").join([*pieces, _escaped(text[done:])])


def _escaped(text: str) -> Markup:
    parts = (_ESCAPES.format(part) if is_escape else escape(part) for part, is_escape in sanitized_parts(text))
    return Markup("").join(parts)


def printed(value: object) -> object:
    """Return what a template prints by default: markup unchanged, everything else sanitized."""
    return value if isinstance(value, Markup) else sanitize(str(value))
