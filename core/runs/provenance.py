"""Identify the code that makes a result: package versions and the states of source trees."""

from __future__ import annotations

import functools
import importlib.metadata
import logging
import os
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from treadle.core.untrusted.sanitize import one_line

_log = logging.getLogger(__name__)

_PACKAGES = ("treadle", "aiohttp", "numpy", "orjson", "prefect", "pyarrow", "pydantic", "tokenizers")
_GIT_TIMEOUT_S = 10.0
_MAX_UNTRACKED = 1000
_TREADLE = Path(__file__).resolve().parents[2]


class GitState(BaseModel):
    """The state of one checkout."""

    model_config = ConfigDict(frozen=True)

    folder: str
    commit: str
    diff: str
    """Changes of tracked files since the commit; cut after 1 MiB characters."""
    untracked: tuple[str, ...]
    """Paths of untracked files that are not ignored."""


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
def git_state(folder: Path = _TREADLE) -> str | None:
    """Return the commit of this code's checkout, with `-dirty` if it was changed; None outside of a checkout.

    The first call decides for the whole process, because imported code does not change with the checkout.
    """
    if not (folder / ".git").exists():
        return None
    try:
        return _git(folder, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*").strip() or None
    except (OSError, subprocess.SubprocessError):
        return None


def checkouts(folder: Path | None) -> list[GitState]:
    """Return the states of the checkouts that hold `folder` and Treadle; warn about one that git cannot read."""
    tops: list[Path] = []
    for one in filter(None, (folder, _TREADLE)):
        top = next((above for above in (one, *one.parents) if (above / ".git").exists()), None)
        if top is not None and top not in tops:
            tops.append(top)
    return [state for top in tops if (state := _checkout(top)) is not None]


def _checkout(folder: Path) -> GitState | None:
    try:
        commit = _git(folder, "rev-parse", "HEAD").strip()
        diff = _git(folder, "diff", "--no-ext-diff", "--no-textconv", "--no-color", "HEAD")
        untracked = _git(folder, "ls-files", "--others", "--exclude-standard").splitlines()
    except subprocess.CalledProcessError as error:
        said = one_line(error.stderr.decode(errors="replace").partition("\n")[0])
        _log.warning("the launch is recorded without the state of %s: git says: %s", folder, said)
        return None
    except (OSError, subprocess.SubprocessError) as error:
        _log.warning("the launch is recorded without the state of %s: %s", folder, error)
        return None
    return GitState(folder=str(folder), commit=commit, diff=diff, untracked=tuple(untracked[:_MAX_UNTRACKED]))


def _git(folder: Path, *words: str) -> str:
    """Return what git prints in a checkout. Raises OSError and SubprocessError."""
    done = subprocess.run(
        ["git", "-c", "core.quotePath=false", "-C", str(folder), *words],
        capture_output=True,
        timeout=_GIT_TIMEOUT_S,
        check=True,
        env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},  # The user may run git at the same time.
    )
    return done.stdout.decode(errors="replace")
