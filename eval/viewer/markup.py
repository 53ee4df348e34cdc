"""Text of models and data sets as HTML: it stays text, whatever it says."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

from treadle.core.harmless import harmless, harmless_parts

_ESCAPES = Markup('<span class="escape">{}</span>')
_MARKS = Markup("<mark>{}</mark>")
_LEAST_MARKED_CHARS = 2


def visible(text: str, wanted: str = "") -> Markup:
    """Escaped text in which control characters and direction marks stand as marked escapes; tabs and newlines stay.

    What was searched for is marked, in whatever case, unless it is a single character.
    """
    if len(wanted) < _LEAST_MARKED_CHARS:
        return _escaped(text)
    pieces, done = [], 0
    for match in re.finditer(re.escape(wanted), text, re.IGNORECASE):
        pieces += [_escaped(text[done : match.start()]), _MARKS.format(_escaped(match[0]))]
        done = match.end()
    return Markup("").join([*pieces, _escaped(text[done:])])


def _escaped(text: str) -> Markup:
    parts = (_ESCAPES.format(part) if is_escape else escape(part) for part, is_escape in harmless_parts(text))
    return Markup("").join(parts)


def printed(value: object) -> object:
    """What a template prints unless it says otherwise: markup as it is, all else without such characters."""
    return value if isinstance(value, Markup) else harmless(str(value))
