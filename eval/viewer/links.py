"""Addresses of the viewer's pages. Nothing in them is taken from data but keys, values of filters and texts, quoted."""

from __future__ import annotations

from urllib.parse import quote

from treadle.eval.viewer.selection import Selection


def list_url(selection: Selection) -> str:
    """The list."""
    return "/" + selection.query()


def trajectory_url(instance: str, key: str, selection: Selection, page: str = "trajectory") -> str:
    """A page of one trajectory (`trajectory`, `changes`, `lineage`, `json`) with the list that it was found in."""
    return f"/{page}/{_quoted(instance)}/{_quoted(key)}{selection.query()}"


def segment_url(instance: str, key: str, place: int) -> str:
    """The text of one segment, all of it."""
    return f"/text/{_quoted(instance)}/{_quoted(key)}?place={place}"


def _quoted(text: str) -> str:
    return quote(text, safe="/@", errors="surrogatepass")
