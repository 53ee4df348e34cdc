"""The log of an attempt: what the program says while it runs, in a file beside it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from treadle.core.harmless import HarmlessFormatter
from treadle.core.storage import storage_errors


class _LogFile(logging.FileHandler):
    """A log whose lines are lost where the disk takes none: the work that they tell of goes on, or says so itself."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Keep silent, where the standard handler prints a traceback for each line."""

    def close(self) -> None:
        """Close the file, also where its last lines cannot be written."""
        with contextlib.suppress(OSError):
            super().close()


@contextlib.contextmanager
def log_to(path: Path) -> Iterator[None]:
    """Write what the `treadle` loggers say into a file as well."""
    logger = logging.getLogger("treadle")
    with storage_errors("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = _LogFile(path, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(HarmlessFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    level = logger.level
    if not logger.isEnabledFor(logging.INFO):
        logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        handler.close()
