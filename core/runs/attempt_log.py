"""Write the `treadle` loggers' output of an attempt to a file in its folder, and upload it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from treadle.core.errors import StorageError
from treadle.core.store.roots import Storage
from treadle.core.store.storage import storage_errors
from treadle.core.untrusted.sanitize import SanitizingFormatter

_log = logging.getLogger(__name__)


class _LogFile(logging.FileHandler):
    """A log file that drops lines it cannot write, for example on a full disk, instead of stopping the work."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Ignore the error; the standard handler prints a traceback for each line."""

    def close(self) -> None:
        """Close the file, ignoring an error from writing its last lines."""
        with contextlib.suppress(OSError):
            super().close()


@contextlib.contextmanager
def uploaded_log(storage: Storage, key: str, whose: str) -> Iterator[None]:
    """Log to the file `key` during a block, and store it as an object at the end; `whose` names it in a warning."""
    path = storage.directory(key)
    try:
        with log_to(path):
            yield
    finally:
        try:
            storage.keep(key)
        except StorageError as failure:
            _log.warning("%s log cannot be uploaded, it stays on this machine in %s: %s", whose, path.parent, failure)


@contextlib.contextmanager
def log_to(path: Path) -> Iterator[None]:
    """Write the output of the `treadle` loggers to a file as well, during a block."""
    logger = logging.getLogger("treadle")
    with storage_errors("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = _LogFile(path, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(SanitizingFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
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
