"""Build folders in the cache atomically, each by one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from treadle.core.cache_folders import fill_folder
from treadle.core.errors import StorageError

MANIFEST = "index.json"
"""File that is written last, with the folder's description and the size of each of its files."""


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the folder's manifest; None if there is none, or if a file is missing or has another size."""
    try:
        manifest: dict[str, Any] = orjson.loads((folder / MANIFEST).read_bytes())
        files: dict[str, int] = manifest["files"]
        complete = all((folder / name).stat().st_size == size for name, size in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return manifest if complete else None


def build_once(folder: Path, build: Callable[[Path], Mapping[str, Any]]) -> dict[str, Any]:
    """Return the manifest of a folder, building the folder first if it is missing or damaged.

    `build` fills an empty folder and returns the content of its manifest. Concurrent processes wait for the one that
    builds. Raises StorageError if the cache cannot be written, and whatever `build` raises.
    """
    manifest = read_manifest(folder)
    if manifest is not None:
        return manifest
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(folder.with_name(f"{folder.name}.lock")):
            return read_manifest(folder) or _build(folder, build)
    except OSError as error:
        raise StorageError(
            f"the search index cannot be stored in {folder.parent}: {error.strerror or error}; "
            "free space there, or set TREADLE_CACHE to another folder"
        ) from error


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a lock file during a block, waiting for its current holder."""
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _build(folder: Path, build: Callable[[Path], Mapping[str, Any]]) -> dict[str, Any]:
    """Build a folder and return its manifest. The caller must hold the lock."""

    def fill(part: Path) -> dict[str, Any]:
        manifest = {**build(part), "files": _files(part)}
        (part / MANIFEST).write_bytes(orjson.dumps(manifest, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS))
        return manifest

    return fill_folder(folder, fill)


def _files(folder: Path) -> dict[str, int]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    # Without lock files, because a library may delete its own when the index is opened.
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size for path in paths if not path.name.endswith(".lock")
    }
