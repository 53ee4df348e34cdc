"""Build the URLs of the viewer's pages. Data only enters them quoted, as keys, filter values and texts."""

from __future__ import annotations

from urllib.parse import quote

from treadle.viewer.selection import Selection


def list_url(selection: Selection) -> str:
    """Return the URL of the list."""
    return "/" + selection.query()


def trajectory_url(instance: str, key: str, selection: Selection, page: str = "trajectory") -> str:
    """Return the URL of a page of one trajectory (`trajectory`, `changes`, `lineage`, `json`), with the selection."""
    return f"/{page}/{_quoted(instance)}/{_quoted(key)}{selection.query()}"


def segment_url(instance: str, key: str, place: int) -> str:
    """Return the URL of the full text of one segment."""
    return f"/text/{_quoted(instance)}/{_quoted(key)}?place={place}"


def _quoted(text: str) -> str:
    return quote(text, safe="/@", errors="surrogatepass")
