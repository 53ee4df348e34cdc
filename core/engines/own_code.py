"""Copy Treadle's own packages into a folder for an engine's Python, keyed by their content.

An engine environment takes minutes to install and depends only on its lock, while Treadle's code changes daily. So the
code is not installed into the environment. It is copied to a folder of its own that is put on the engine's
`PYTHONPATH`: an edit creates a new folder in milliseconds, and never a stale one. This needs neither a build back-end
nor the network.
"""

from __future__ import annotations

import hashlib
import shutil
import tomllib
import uuid
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import treadle.core
from treadle.core.engines.cache import cache_root

_SUFFIXES = (".py", ".jinja", ".toml", ".txt")


def own_code() -> Path:
    """Return a folder with the current `treadle/...`; create it if it does not exist."""
    files = {name: path.read_bytes() for name, path in _files().items()}
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\0{len(files[name])}\0".encode() + files[name])
    target = cache_root() / "code" / digest.hexdigest()[:16]
    if not target.exists():
        _write(target, files)
    return target


def _files() -> dict[str, Path]:
    """Return every module and data file of every `treadle` package, by its path inside the copy."""
    return {
        f"treadle/{package}/{path.relative_to(folder).as_posix()}": path
        for package, folder in _packages().items()
        for path in folder.rglob("*")
        if (path.suffix in _SUFFIXES or path.name == "py.typed") and "__pycache__" not in path.parts
    }


def _packages() -> dict[str, Path]:
    above = Path(treadle.core.__file__).resolve().parents[1]
    project = above / "pyproject.toml"
    if project.is_file():
        mapping = tomllib.loads(project.read_text(encoding="utf-8"))["tool"]["setuptools"]["package-dir"]
        return {name.removeprefix("treadle."): above / folder for name, folder in mapping.items()}
    return {path.parent.name: path.parent for path in above.glob("*/__init__.py")}


def _write(target: Path, files: dict[str, bytes]) -> None:
    # Not named by process: in containers, a process that was killed and the next one have the same number.
    temporary = target.with_name(f"{target.name}.{uuid.uuid4().hex}.tmp")
    for name, data in files.items():
        path = temporary / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    try:
        number = version("treadle")
    except PackageNotFoundError:
        number = "0"
    about = temporary / f"treadle-{number}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: treadle\nVersion: {number}\n", encoding="utf-8")
    try:
        temporary.rename(target)
    except OSError:
        # Another process created it first, with the same bytes.
        shutil.rmtree(temporary, ignore_errors=True)
        if not target.exists():
            raise
