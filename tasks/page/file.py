"""The page's file: it appears whole or not at all, and takes the place of nothing but an earlier page."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from treadle.core.errors import ConfigError
from treadle.core.storage import make_folder, storage_errors
from treadle.eval.page.document import GENERATOR

_MARK = f'<meta name="generator" content="{GENERATOR}">'.encode()
_LOOKED_AT_BYTES = 2_000


def write_page(target: Path, content: bytes) -> None:
    """Write a page; raises ConfigError where another file is in its place, StorageError where the disk refuses."""
    target = target.absolute()
    with storage_errors("write", target):
        if os.path.lexists(target) and not _is_page(target):
            raise ConfigError(f"{target} is there and is no page of `{GENERATOR}`; name another file")
        make_folder(target.parent)
        number, name = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)
        work = Path(name)
        try:
            with os.fdopen(number, "wb") as file:
                file.write(content)
                os.fchmod(file.fileno(), 0o644)
            work.replace(target)
        finally:
            work.unlink(missing_ok=True)


def _is_page(path: Path) -> bool:
    """Whether it is a page of ours; of a link that what it leads to is."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return _MARK in file.read(_LOOKED_AT_BYTES)
