"""Log a warning once per process, although each stage and shard opens web search again."""

from __future__ import annotations

import logging

_told: set[str] = set()


def warn_once(log: logging.Logger, what: str) -> None:
    """Log a warning if this process has not logged it yet."""
    if what not in _told:
        _told.add(what)
        log.warning("%s", what)
