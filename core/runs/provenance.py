"""Identify the code that made a result: package versions and the state of the source tree."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path

_PACKAGES = ("treadle", "aiohttp", "numpy", "orjson", "prefect", "pyarrow", "pydantic", "tokenizers")
_GIT_TIMEOUT_S = 5.0


def package_versions(names: Iterable[str] = _PACKAGES) -> dict[str, str]:
    """Return the versions of Python and of the installed ones of these packages."""
    versions = {"python": platform.python_version()}
    versions.update((name, version) for name in names if (version := _version(name)) is not None)
    return versions


@functools.cache
def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def git_state(folder: Path | None = None) -> str | None:
    """Return the commit of this code's checkout, with `-dirty` if it was changed; None outside of a checkout.

    The first call decides for the whole process, because imported code does not change with the checkout.
    """
    source = folder or Path(__file__).resolve().parents[2]
    if not (source / ".git").exists():
        return None
    command = ["git", "-C", str(source), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
