"""Which code made a result: package versions and the state of the source tree."""

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
    """Versions of Python and of those of the packages that are installed."""
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
    """Commit of the checkout that this code runs from, with `-dirty` if it was changed; None outside of one.

    As it was at the first question: what is imported does not change with the checkout.
    """
    source = folder or Path(__file__).resolve().parents[1]
    if not (source / ".git").exists():
        return None
    command = ["git", "-C", str(source), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
