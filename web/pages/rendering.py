"""Render web search results as text for the agent, or as documents for its summarizer. Pure.

All content is untrusted. Each string is cleaned and can spell no control token. Quoted as JSON, no page can close its
own object or open another. See docs/behaviour/web.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson

from treadle.web.config import AGENT_WINDOW_CHARS, WebSettings
from treadle.web.pages.control_tokens import without_known_tokens
from treadle.web.pages.passages import clean, clean_line, first_words, window
from treadle.web.types import MAX_URL_CHARS, PDF_TYPE, PageEntry, WebHit

NOT_FETCHED = "[This page could not be fetched.]"
SUMMARY_WINDOW_CHARS = 3_000

_MAX_TITLE_CHARS = 200
_MAX_NAME_CHARS = 100
_ELLIPSIS = "..."


def render_pages(hits: Sequence[WebHit], pages: Sequence[PageEntry], settings: WebSettings) -> str:
    """Return text for the agent: one JSON object per line, without URLs, at most `max_chars` characters.

    `pages[i]` is the page of `hits[i]`. The first object that does not fit is the last one; its field `context`, the
    passage of the page, is truncated.
    """
    return "\n".join(_objects(hits, pages, settings, AGENT_WINDOW_CHARS, urls=False))


def documents_of(hits: Sequence[WebHit], pages: Sequence[PageEntry], settings: WebSettings) -> tuple[str, ...]:
    """Return the objects of `render_pages` as documents for a summarizer: with URLs and wider windows by default."""
    return tuple(_objects(hits, pages, settings, SUMMARY_WINDOW_CHARS, urls=True))


def snippet_documents(hits: Sequence[WebHit], settings: WebSettings) -> tuple[str, ...]:
    """Return a line `Page i: snippet` for each distinct, non-empty snippet; used if pages are not fetched.

    Including newlines between them, they have at most `max_chars` characters.
    """
    snippets = dict.fromkeys(_line(hit.snippet, settings.snippet_chars) for hit in hits)
    kept: list[str] = []
    remaining_chars = settings.max_chars
    for snippet in filter(None, snippets):
        number = f"Page {len(kept) + 1}: "
        shortened = _cut(snippet, remaining_chars - len(number))
        if not shortened:
            break
        kept.append(number + shortened)
        remaining_chars -= len(kept[-1]) + 1
    return tuple(kept)


def render_recorded(text: str, settings: WebSettings) -> str:
    """Return a result that was recorded as text, truncated to `max_chars` characters."""
    return _cut(without_known_tokens(clean(text)), settings.max_chars)


def _objects(
    hits: Sequence[WebHit], pages: Sequence[PageEntry], settings: WebSettings, window_chars: int, *, urls: bool
) -> list[str]:
    window_chars = settings.window_chars or window_chars
    kept: list[str] = []
    remaining_chars = settings.max_chars
    for number, (hit, page) in enumerate(zip(hits, pages, strict=True), 1):
        line, is_complete = _fit(_render_hit(number, hit, page, settings, window_chars, urls), remaining_chars)
        if line:
            kept.append(line)
            remaining_chars -= len(line) + 1
        if not is_complete:
            break
    return kept


def _render_hit(
    number: int, hit: WebHit, page: PageEntry, settings: WebSettings, window_chars: int, urls: bool
) -> dict[str, Any]:
    snippet = clean_line(hit.snippet)
    shown = {
        "id": number,
        "title": _line(hit.title or page.title, _MAX_TITLE_CHARS),
        **({"url": _line(hit.url, MAX_URL_CHARS)} if urls else {}),
        "site_name": _line(hit.site_name, _MAX_NAME_CHARS),
        "date": _line(hit.date, _MAX_NAME_CHARS),
        "snippet": _line(snippet, settings.snippet_chars),
    }
    if page.failure is not None:
        return {**shown, "context": NOT_FETCHED}
    text = clean(page.text[: settings.page_chars])
    if page.media_type == PDF_TYPE:
        text = first_words(text, settings.pdf_words)
    passage = window(text, snippet, num_chars=window_chars, least=settings.snippet_match)
    return {**shown, "context": without_known_tokens(passage)}


def _fit(shown: dict[str, Any], remaining_chars: int) -> tuple[str, bool]:
    """Return an object as at most `remaining_chars` characters of JSON, and whether its field `context` is complete.

    The JSON is empty if the object does not fit even without its context.
    """
    line, context = _json(shown), shown["context"]
    if len(line) <= remaining_chars:
        return line, True

    def cut(num_chars: int) -> str:
        return _json({**shown, "context": context[:num_chars] + _ELLIPSIS})

    # The length grows with the context: each character becomes one or more characters of JSON.
    line = cut(_largest(len(context), lambda num_chars: len(cut(num_chars)) <= remaining_chars))
    return (line if len(line) <= remaining_chars else ""), False


def _largest(limit: int, fits: Callable[[int], bool]) -> int:
    """Return the largest count up to `limit` that fits; `fits` must be monotonic. 0 if none fits."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _json(shown: dict[str, Any]) -> str:
    return orjson.dumps(shown).decode()


def _line(text: str, num_chars: int) -> str:
    """Return untrusted text as one line; truncated before it is escaped, so that no escape is cut."""
    return without_known_tokens(clean_line(text)[:num_chars])


def _cut(text: str, num_chars: int) -> str:
    """Return text truncated to `num_chars` characters, ending in three dots if they fit."""
    if len(text) <= num_chars:
        return text
    return text[: num_chars - len(_ELLIPSIS)] + _ELLIPSIS if num_chars > len(_ELLIPSIS) else ""
