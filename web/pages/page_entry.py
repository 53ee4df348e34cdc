"""Fetch and read a page as an entry of the record; failures of a page are entries too."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from treadle.core.errors import TreadleError
from treadle.core.untrusted.sanitize import one_line
from treadle.web.types import PageEntry, Unfetchable

if TYPE_CHECKING:
    from treadle.web.pages.fetch import Fetcher
    from treadle.web.pages.reader import PageReader

_INFRASTRUCTURE_ERRORS = (TreadleError, OSError, MemoryError, RuntimeError)
"""Errors that say nothing about a page: errors already classified, and a lack of memory, files or threads."""

_log = logging.getLogger(__name__)


async def page_entry(
    key: str,
    url: str,
    fetcher: Fetcher,
    reader: PageReader,
    *,
    now: Callable[[], str],
    max_bytes: int,
    deadline: float,
) -> PageEntry:
    """Return the entry of a page of at most `max_bytes` decompressed bytes. `deadline` is in the event loop's clock.

    Raises TreadleError, OSError, MemoryError or RuntimeError for failures that the page did not cause.
    """
    final_url = ""
    try:
        with ExitStack() as held_slots:
            fetched = await fetcher.fetch(url, deadline=deadline, held_slots=held_slots)
            final_url = fetched.final_url
            page = await reader.read(fetched, max_bytes=max_bytes, deadline=deadline)
    except Unfetchable as failure:
        return PageEntry(key, url, now(), final_url, failure=failure.kind, detail=failure.detail)
    except _INFRASTRUCTURE_ERRORS:
        raise
    except Exception as error:  # noqa: BLE001 - no page may keep its rollout pending forever
        _log.exception("unexpected %s at the page %s: this is a bug of Treadle", type(error).__name__, one_line(url))
        detail = f"Treadle failed on it ({type(error).__name__})"
        return PageEntry(key, url, now(), final_url, failure="unreadable", detail=detail)
    return PageEntry(key, url, now(), final_url, page.title, page.text, page.media_type, reader=page.reader)
