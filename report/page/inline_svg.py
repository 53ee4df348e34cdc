"""Convert SVG from matplotlib into markup for a web page: with the colours of the page's theme, and sanitized.

Only shapes and texts with descriptive attributes are kept: no scripts, links, or styles that a content security policy
would have to allow. Colours become CSS variables, so that one picture works in light mode, dark mode and print.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from html import escape

from treadle.core.errors import DataError
from treadle.core.plots import COLOUR, LIGHT, WARM
from treadle.core.untrusted.sanitize import sanitize
from treadle.report.radar import COLOURS

SERIES = COLOURS
"""Colours of models in charts and radar; the page's palette has one variable for each."""
INK, MUTED, GRID, PAPER = "#000000", "#6b7280", "#dfe3e8", "#ffffff"

THEME = {
    INK: "currentColor",
    PAPER: "var(--card)",
    MUTED: "var(--muted)",
    GRID: "var(--line)",
    COLOUR: "var(--accent)",
    LIGHT: "var(--bar)",
    WARM: "var(--warm)",
    "#c8c8c8": "var(--faint)",
    "#cccccc": "var(--line)",
    "#b0b0b0": "var(--line)",
    "#9a9a9a": "var(--faint)",
    **{colour: f"var(--series-{number})" for number, colour in enumerate(SERIES)},
}
"""Colour as matplotlib writes it -> CSS value in the page, defined in core/colours.css."""
_SHAPES = frozenset({"g", "path", "rect", "circle", "line", "polyline", "polygon", "text", "tspan", "use", "defs"})
_GEOMETRY_ATTRIBUTES = frozenset(
    {"x", "y", "width", "height", "r", "cx", "cy", "x1", "x2", "y1", "y2", "d", "points", "transform"}
)
_STYLE_ATTRIBUTES = frozenset(
    {
        "fill", "fill-opacity", "font-size", "font-style", "font-weight", "opacity", "stroke", "stroke-dasharray",
        "stroke-dashoffset", "stroke-linecap", "stroke-linejoin", "stroke-miterlimit", "stroke-opacity",
        "stroke-width", "text-anchor",
    }
)  # fmt: skip
_PLAIN_VALUE = re.compile(r"[#\w.,%\s-]*")
_POSITIONS = re.compile(r"[\d.,\sMmLlHhVvCcSsQqTtAaZzEe+-]*|(?:(?:matrix|translate|rotate|scale)\([\d.,\sEe+-]*\)\s*)+")
_NO_XML = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
"""Characters that XML forbids and that matplotlib copies from names."""
_FRACTION = re.compile(r"\d+\.\d{3,}")
_OWN_REFERENCE = re.compile(r"(?:url\()?#([\w.-]+)\)?")
_PIXELS_PER_POINT = 96 / 72


def inline_svg(picture: bytes, name: str, title: str, description: str) -> str:
    """Return the picture as markup for a page. `name` (letters, digits, hyphens) makes its ids unique there.

    Raise DataError if the picture is not an SVG.
    """
    try:
        root = ElementTree.fromstring(_NO_XML.sub(b"?", picture))
        _, _, width, height = (float(part) for part in root.attrib["viewBox"].split())
    except (ElementTree.ParseError, KeyError, ValueError) as error:
        raise DataError(f"picture {title!r} is no SVG as matplotlib writes it: {error}") from None
    used = {reference for element in root.iter() for reference in _references(element)}
    content = "".join(part for child in root for part in _markup(child, name, used))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width * _PIXELS_PER_POINT:.0f}" height="{height * _PIXELS_PER_POINT:.0f}" role="img" '
        f'aria-labelledby="{name}-title {name}-desc" fill="currentColor" stroke-linejoin="round">'
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(description)}</desc>'
        f"{content}</svg>"
    )


def _markup(element: ElementTree.Element, name: str, used: set[str]) -> Iterator[str]:
    tag = _local(element.tag)
    if tag == "clipPath":
        attributes = _identity(element, name, used)
    elif tag in _SHAPES:
        attributes = _identity(element, name, used) | _attributes(element, name)
    else:
        return
    inner = escape(sanitize(element.text or ""), quote=False) if tag in ("text", "tspan") else ""
    inner += "".join(part for child in element for part in _markup(child, name, used))
    if tag == "g" and not attributes:
        yield inner
    elif inner or tag not in ("g", "defs", "clipPath", "text"):
        written = "".join(f' {key}="{escape(value)}"' for key, value in attributes.items())
        yield f"<{tag}{written}>{inner}</{tag}>" if inner else f"<{tag}{written}/>"


def _attributes(element: ElementTree.Element, name: str) -> dict[str, str]:
    """Return the allowed attributes of a shape. Styles become attributes, so that a page's policy can forbid styles."""
    kept = {}
    for key, value in element.attrib.items():
        local = _local(key)
        if local in _GEOMETRY_ATTRIBUTES and _POSITIONS.fullmatch(value):
            kept[local] = " ".join(_FRACTION.sub(lambda match: f"{float(match[0]):.2f}", value).split())
        elif local in ("href", "clip-path") and (match := _OWN_REFERENCE.fullmatch(value)):
            kept[local] = f"#{name}-{match[1]}" if local == "href" else f"url(#{name}-{match[1]})"
        elif local in _STYLE_ATTRIBUTES:
            kept |= _style_attribute(local, value)
        elif local == "style":
            for declaration in value.split(";"):
                kept |= _style_attribute(*(part.strip() for part in declaration.partition(":")[::2]))
    return kept


def _style_attribute(name: str, value: str) -> dict[str, str]:
    if name not in _STYLE_ATTRIBUTES or not _PLAIN_VALUE.fullmatch(value):
        return {}
    return {name: THEME.get(value.lower(), value)}


def _identity(element: ElementTree.Element, name: str, used: set[str]) -> dict[str, str]:
    own = element.get("id", "")
    return {"id": f"{name}-{own}"} if own in used else {}


def _references(element: ElementTree.Element) -> Iterator[str]:
    for key, value in element.attrib.items():
        if _local(key) in ("href", "clip-path") and (match := _OWN_REFERENCE.fullmatch(value)):
            yield match[1]


def _local(name: str) -> str:
    return name.rpartition("}")[2]
