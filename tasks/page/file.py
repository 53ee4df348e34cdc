"""The page's file: it takes the place of nothing but an earlier page."""

from __future__ import annotations

import os
from pathlib import Path

from treadle.core.errors import ConfigError
from treadle.core.export_file import write_file
from treadle.core.storage import storage_errors
from treadle.eval.page.document import GENERATOR

_MARK = f'<meta name="generator" content="{GENERATOR}">'.encode()
_LOOKED_AT_BYTES = 2_000


def write_page(target: Path, content: bytes) -> None:
    """Write a page; raises ConfigError where another file is in its place, StorageError where the disk refuses."""
    if os.path.lexists(target) and not _is_page(target):
        raise ConfigError(f"{target} is there and is no page of `{GENERATOR}`; name another file")
    write_file(target, content, replace=True)


def _is_page(path: Path) -> bool:
    """Whether it is a page of ours; of a link that what it leads to is."""
    if not path.is_file():
        return False
    with storage_errors("read", path), path.open("rb") as file:
        return _MARK in file.read(_LOOKED_AT_BYTES)
