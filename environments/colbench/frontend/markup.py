"""Find the page in a message, and give all pictures in it the same source.

Paper: arXiv 2503.15478 (ColBench, frontend design). Rules: docs/guides/colbench.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from treadle.agent.tools.workspace.files import BadTask

PAGE, TARGET = "page", "target"
"""Tool names in call records for pages of the agent and for the target page; the records' notes name the pictures."""
MAX_PAGE_CHARS = 1_000_000
"""Longest target page in characters."""
PICTURES = "https://picsum.photos/id/48"
"""Address that replaces those of random pictures; `/width/height` is appended."""
_USUAL_SIZE = ("640", "480")
_LEGACY_UNSPLASH = re.compile(r"https://source\.unsplash\.com/random/(\d+)x(\d+)/\?[\w=]+")
_LEGACY_PICSUM = re.compile(r"https://picsum\.photos/(\d+)/(\d+)")
_UNSPLASH = re.compile(r"https?://source\.unsplash\.com(?:/[^\s\"'<>()]*)?")
_SIZE = re.compile(r"/(\d{1,5})x(\d{1,5})(?![0-9])")
_PICSUM = re.compile(r"https?://picsum\.photos/(?:id/\d+/|seed/[^/\s\"'<>()]+/)?(\d{1,5})(?:/(\d{1,5}))?")
_NAMES = ("html", "body")
_FENCE_END = re.compile(r"\n[^\S\n]*```.*\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Snippet:
    """HTML of a page in a message; `is_repaired` is true if its closing tag was missing and has been added."""

    html: str
    is_repaired: bool = False


def with_fixed_pictures(html: str, *, legacy: bool = False) -> str:
    """Replace the addresses of random pictures in a page by the address of one picture, in the same size.

    With `legacy` only the addresses that the published program replaces are replaced.
    """
    if legacy:
        html = _LEGACY_UNSPLASH.sub(rf"{PICTURES}/\1/\2", html)
        return _LEGACY_PICSUM.sub(rf"{PICTURES}/\1/\2", html)
    html = _UNSPLASH.sub(_from_unsplash, html)
    return _PICSUM.sub(lambda match: f"{PICTURES}/{match[1]}/{match[2] or match[1]}", html)


def _from_unsplash(match: re.Match[str]) -> str:
    size = _SIZE.search(match[0])
    width, height = (size[1], size[2]) if size else _USUAL_SIZE
    return f"{PICTURES}/{width}/{height}"


def find_page(text: str, *, legacy: bool = False) -> Snippet | None:
    """Return the first page of a message: its `<html>` element, else its `<body>`; None without one.

    A page that ends without its closing tag gets one, except with `legacy`, which finds no page then.
    """
    if legacy:
        found = next((element for name in _NAMES if (element := _closed(text, name))), None)
        return None if found is None else Snippet(found)
    for name in _NAMES:
        begin = re.search(rf"<{name}(?=[\s>])", text, re.IGNORECASE)
        if begin is None:
            continue
        end = re.compile(rf"</{name}\s*>", re.IGNORECASE).search(text, begin.end())
        if end is not None:
            return Snippet(text[begin.start() : end.end()])
        rest = _FENCE_END.sub("", text[begin.start() :])
        return Snippet(f"{rest}</{name}>", is_repaired=True)
    return None


def _closed(text: str, name: str) -> str | None:
    """Return the text from the first `<name` to the next `</name>`, as the published program finds it.

    Return None if one of the two is missing.
    """
    start = text.find(f"<{name}")
    end = text.find(f"</{name}>", start + 1)
    return None if start < 0 or end < 0 else text[start : end + len(f"</{name}>")]


def target_page(payload: Mapping[str, Any]) -> str:
    """Return the target page, from the field `page` of a payload; raise BadTask, which quotes nothing of it."""
    page = payload.get("page")
    if not isinstance(page, str) or not page.strip():
        raise BadTask("page is no text")
    if len(page) > MAX_PAGE_CHARS:
        raise BadTask(f"page has {len(page):,} characters; {MAX_PAGE_CHARS:,} are possible")
    return page
