"""Text of models and data sets as HTML: it stays text, whatever it says."""

from __future__ import annotations

from markupsafe import Markup, escape

from treadle.core.harmless import harmless, harmless_parts

_ESCAPES = Markup('<span class="escape">{}</span>')


def visible(text: str) -> Markup:
    """Escaped text in which control characters and direction marks stand as marked escapes; tabs and newlines stay."""
    parts = (_ESCAPES.format(part) if is_escape else escape(part) for part, is_escape in harmless_parts(text))
    return Markup("").join(parts)


def printed(value: object) -> object:
    """What a template prints unless it says otherwise: markup as it is, all else without such characters."""
    return value if isinstance(value, Markup) else harmless(str(value))
