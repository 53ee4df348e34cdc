"""Write a file atomically, replacing an existing one only on request."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from treadle.core.errors import ConfigError
from treadle.core.store.storage import make_folder, storage_errors


def write_file(target: Path, content: bytes, *, replace: bool = False) -> None:
    """Write a file atomically.

    Raises ConfigError if the file exists and `replace` is false, or if it is a folder; raises StorageError if writing
    fails.
    """
    target = target.absolute()
    if target.is_dir() or (os.path.lexists(target) and not replace):
        raise ConfigError(f"{target} already exists; choose another file, or replace it with --force")
    with storage_errors("write", target):
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
