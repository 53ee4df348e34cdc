"""Log a warning once per process, although each stage and shard opens web search again."""

from __future__ import annotations

import logging

_logged: set[str] = set()


def warn_once(log: logging.Logger, what: str) -> None:
    """Log a warning if this process has not logged it yet."""
    if what not in _logged:
        _logged.add(what)
        log.warning("%s", what)
