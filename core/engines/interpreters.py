"""Find a Python interpreter that the locks of engines are made for: Treadle itself runs under later ones, too."""

from __future__ import annotations

import itertools
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from treadle.core.errors import EngineError

ENGINE_PYTHON = "3.11"
"""Version that all locks are made for."""
_SYSTEM = ("Linux", "x86_64")
_MANAGED = (".pyenv/versions/{0}*/bin/python{0}", ".local/share/uv/python/cpython-{0}*/bin/python{0}")
"""Places, below the home folder, where pyenv and uv keep interpreters that need not be on the PATH."""
_PROBE = "import ensurepip, platform, venv; print(platform.python_implementation(), platform.python_version())"
_PROBE_S = 20.0


def engine_interpreter(what: str) -> Path:
    """Return an interpreter for the environment of an engine; `what` names the engine in messages.

    Raises EngineError on another system, or if the machine has no such interpreter.
    """
    here = (platform.system(), platform.machine())
    if here != _SYSTEM:
        locked, found_here = " ".join(_SYSTEM), " ".join(here)
        raise EngineError(f"cannot install engine {what}: its lock is for {locked}, and this is {found_here}")
    if (found := find_interpreter()) is None:
        raise EngineError(
            f"cannot install engine {what}: its lock is for CPython {ENGINE_PYTHON}, and this machine has none with "
            f"venv and ensurepip; install it (Debian, Ubuntu: apt install python{ENGINE_PYTHON}-venv; pyenv: "
            f"pyenv install {ENGINE_PYTHON}; uv: uv python install {ENGINE_PYTHON})"
        )
    return found


def find_interpreter() -> Path | None:
    """Return a CPython of `ENGINE_PYTHON` that can make virtual environments; None if the machine has none.

    The one that runs Treadle is preferred, then the PATH, then what pyenv and uv manage.
    """
    return next(filter(_is_usable, dict.fromkeys(_candidates())), None)


def _candidates() -> Iterator[Path]:
    yield Path(sys.executable)
    name = f"python{ENGINE_PYTHON}"
    for folder in filter(None, os.environ.get("PATH", "").split(os.pathsep)):
        if found := shutil.which(name, path=folder):
            yield Path(found)
    patterns = [pattern.format(ENGINE_PYTHON) for pattern in _MANAGED]
    yield from sorted(itertools.chain.from_iterable(Path.home().glob(pattern) for pattern in patterns), reverse=True)


def _is_usable(python: Path) -> bool:
    """Return whether an interpreter runs, has the version and can make environments; a shim of pyenv may do none."""
    if python == Path(sys.executable) and platform.python_version_tuple()[:2] != tuple(ENGINE_PYTHON.split(".")):
        return False
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        done = subprocess.run(
            [python, "-c", _PROBE], capture_output=True, text=True, timeout=_PROBE_S, check=True, env=environ
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.stdout.startswith(f"CPython {ENGINE_PYTHON}.")
