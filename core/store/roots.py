"""Open the storage of a root: a local folder or an object store."""

from __future__ import annotations

import re
from pathlib import Path

from treadle.core.errors import ConfigError
from treadle.core.store.object_storage import ObjectStorage
from treadle.core.store.storage import LocalStorage

Storage = LocalStorage | ObjectStorage
"""A root that stores objects; both kinds have the same methods."""

# One slash: a Path has collapsed the two of the URL.
_OBJECT_STORE = re.compile(r"s3:/{1,2}([^/]+)(?:/(.*))?")


def is_object_store(root: str | Path) -> bool:
    """Return whether a root is an `s3://` URL, also after conversion to a Path."""
    return _OBJECT_STORE.fullmatch(str(root)) is not None


def open_storage(root: str | Path) -> Storage:
    """Return the storage of a local path or a URL `s3://bucket/prefix`; raise ConfigError for any other URL.

    Nothing is read or written yet. Endpoint, region and credentials come from the usual AWS variables.
    """
    text = str(root)
    if match := _OBJECT_STORE.fullmatch(text):
        return ObjectStorage(match[1], (match[2] or "").strip("/"))
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", text):
        raise ConfigError(f"{text} cannot be a root; give a local path, or s3://bucket/prefix")
    return LocalStorage(Path(root))
