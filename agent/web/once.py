"""Warnings that are told once: every stage and shard of a process opens the web anew."""

from __future__ import annotations

import logging

_told: set[str] = set()


def warn_once(log: logging.Logger, what: str) -> None:
    """Warn of something, the first time in this process."""
    if what not in _told:
        _told.add(what)
        log.warning("%s", what)
