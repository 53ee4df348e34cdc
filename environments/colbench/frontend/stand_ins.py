"""Replace what pages load from the network: pictures by drawings of their size, Tailwind by a style sheet."""

from __future__ import annotations

import itertools
import re

from treadle.agent.browser.page import StandIn
from treadle.environments.colbench.frontend.tailwind import style_sheet

_PICTURE = re.compile(r"https?://picsum\.photos/(?:id/\d+/)?(\d{1,4})/(\d{1,4})(?:[?.].*)?")
_TAILWIND = re.compile(r"(?:src|href)\s*=\s*[\"']?[^\"'\s>]{0,300}?tailwind", re.IGNORECASE)
_HEAD = re.compile(r"<(?:head|html)(?:\s[^>]{0,500})?>", re.IGNORECASE)


def stand_in(url: str) -> StandIn | None:
    """Return the stand-in for an address: a picture, or an empty file for Tailwind, whose rules `with_styles` adds."""
    picture = _PICTURE.fullmatch(url)
    if picture is not None:
        return StandIn(_drawing(int(picture[1]), int(picture[2])).encode(), "image/svg+xml")
    if "tailwind" in url.partition("?")[0].lower():
        return StandIn(b"", "text/css" if ".css" in url else "text/javascript")
    return None


def with_styles(html: str, sheet: str | None = None) -> str:
    """Return a page with the rules of Tailwind in it, if it loads Tailwind from any address.

    `sheet` is the text of a style sheet; without one, the rules of the page's classes are made here.
    """
    if _TAILWIND.search(html) is None:
        return html
    rules = (style_sheet(html) if sheet is None else sheet).replace("</style", "<\\/style")
    place = max((match.end() for match in itertools.islice(_HEAD.finditer(html), 2)), default=0)
    return f"{html[:place]}<style>{rules}</style>{html[place:]}"


def _drawing(width: int, height: int) -> str:
    """Return a landscape in SVG, stretched to a size in pixels."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 8 6" '
        'preserveAspectRatio="none"><rect width="8" height="6" fill="#9fb8cc"/>'
        '<circle cx="6" cy="1.5" r=".7" fill="#f4e3b2"/>'
        '<path d="M0 6V4l2-1.6L4.2 5 6 3.6 8 5v1z" fill="#5b7083"/></svg>'
    )
