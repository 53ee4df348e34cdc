"""Write a report page to a file, in place of an older page only."""

from __future__ import annotations

import os
from pathlib import Path

from treadle.core.errors import ConfigError
from treadle.core.store.exported import write_file
from treadle.core.store.storage import storage_errors
from treadle.report.page.document import GENERATOR

_MARK = f'<meta name="generator" content="{GENERATOR}">'.encode()


_HEAD_BYTES = 2_000


def write_page(target: Path, content: bytes) -> None:
    """Write a page; raise ConfigError if another file is in its place, StorageError if writing fails."""
    if os.path.lexists(target) and not _is_page(target):
        raise ConfigError(f"{target} is there and is no page of `{GENERATOR}`; name another file")
    write_file(target, content, replace=True)


def _is_page(path: Path) -> bool:
    """Return whether the file, or the target of a link, is a page written by Treadle."""
    if not path.is_file():
        return False
    with storage_errors("read", path), path.open("rb") as file:
        return _MARK in file.read(_HEAD_BYTES)
