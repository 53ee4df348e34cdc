"""Folders in the cache that are there completely or not at all, each built by one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from treadle.core.engines.cache import cache_root
from treadle.core.errors import StorageError
from treadle.core.storage import force_folder_to_disk

MANIFEST = "index.json"
"""Written last: what the folder is, and the length of each of its files."""


def default_cache() -> Path:
    """`$TREADLE_CACHE/indexes`, else `~/.cache/treadle/indexes`."""
    return cache_root() / "indexes"


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The folder's manifest, or None where it has none or its files are not there in full length."""
    try:
        manifest: dict[str, Any] = orjson.loads((folder / MANIFEST).read_bytes())
        files: dict[str, int] = manifest["files"]
        complete = all((folder / name).stat().st_size == size for name, size in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return manifest if complete else None


def is_complete(folder: Path) -> bool:
    """Whether an index is there with all its files in full length."""
    return read_manifest(folder) is not None


def build_once(folder: Path, build: Callable[[Path], Mapping[str, Any]]) -> dict[str, Any]:
    """The manifest of a folder, which is built first where it is missing or damaged.

    `build` fills an empty folder and returns what its manifest says. Processes that want the same folder wait for the
    one that builds it. Raises StorageError where the cache cannot be written, and what `build` raises.
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
            f"the search index cannot be kept in {folder.parent}: {error.strerror or error}; "
            "free space there, or set TREADLE_CACHE to another folder"
        ) from error


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a lock file; waits for its holder."""
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _build(folder: Path, build: Callable[[Path], Mapping[str, Any]]) -> dict[str, Any]:
    """Build beside the folder and move it into place; the caller holds its lock."""
    for leftover in folder.parent.glob(f".{folder.name}-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    if folder.exists():
        shutil.rmtree(folder)
    building = folder.parent / f".{folder.name}-{uuid.uuid4().hex[:8]}"
    building.mkdir()
    try:
        manifest = {**build(building), "files": _files(building)}
        (building / MANIFEST).write_bytes(orjson.dumps(manifest, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS))
        force_folder_to_disk(building)
        building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return manifest


def _files(folder: Path) -> dict[str, int]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    # Lock files are left out: a library may drop its own when the index is opened.
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size for path in paths if not path.name.endswith(".lock")
    }
