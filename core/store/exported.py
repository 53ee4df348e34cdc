"""Write a folder or a file for the user atomically, replacing only an earlier export or on request."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from treadle.core.errors import ConfigError
from treadle.core.store.storage import force_folder_to_disk, make_folder, storage_errors, write_atomically

EXPORT_FILE = "export.json"
"""File in every export, which identifies a folder as an export."""

_FILES = (".json", ".jsonl", ".parquet")
"""Suffixes of single files: with one of these, the user expects a file and not a folder."""


@contextlib.contextmanager
def new_folder(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield a folder to write into, which becomes `target` at the end of the block; delete it on any error.

    Raises ConfigError if `target` has the suffix of a data file, or exists and is not empty, unless it is an earlier
    export and `replace` is set. Raises StorageError if writing fails.
    """
    target = target.absolute()
    if target.suffix in _FILES:
        raise ConfigError(f"{target} is a file, but the export is a folder; choose another path")
    _check(target, replace)
    with storage_errors("write", target):
        make_folder(target.parent)
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        with storage_errors("write", work):
            yield work
            os.chmod(work, 0o755)
            force_folder_to_disk(work)
            _check(target, replace)
            _put(work, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def write_facts(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write `export.json`, which marks a folder as an export."""
    content = orjson.dumps({"version": 1, **facts}, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    (folder / EXPORT_FILE).write_bytes(content)


def _check(target: Path, replace: bool) -> None:
    if not os.path.lexists(target) or (target.is_dir() and not any(target.iterdir())):
        return
    if not (target / EXPORT_FILE).is_file():
        raise ConfigError(f"{target} exists and is not an export; choose a folder that does not exist yet")
    if not replace:
        raise ConfigError(f"{target} already contains an export; choose another folder, or replace it with --force")


def _put(work: Path, target: Path) -> None:
    """Rename the new folder to its target; move an earlier export aside first, and delete it afterwards."""
    if not os.path.lexists(target):
        work.rename(target)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-old-", dir=target.parent))
    target.rename(aside / target.name)
    try:
        work.rename(target)
    except BaseException:
        (aside / target.name).rename(target)
        raise
    finally:
        if target.exists():
            shutil.rmtree(aside, ignore_errors=True)


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
        write_atomically(target, content)
