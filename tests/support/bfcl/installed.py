"""Install `bfcl-eval` without its dependencies into the cache, and run its own code in a process apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from treadle.core.engines.cache import cache_lock, cache_root

PACKAGE = "bfcl-eval==2026.3.23"
_SIDE = Path(__file__).with_name("package_side.py")


def bfcl_folder() -> Path:
    """Return the folder that the package is imported from; it is installed first if it is missing (14 MB)."""
    home = cache_root() / "envs" / PACKAGE.replace("==", "-")
    done = home / ".complete"
    with cache_lock(home):
        if not done.exists():
            install = ["-m", "pip", "install", "-q", "--no-deps", "--disable-pip-version-check", "--upgrade"]
            subprocess.run([sys.executable, *install, "--target", str(home), PACKAGE], check=True)
            done.touch()
    return home


def ask_package(folder: Path, task: str, given: Any = None) -> Any:
    """Let a function of package_side.py answer; both sides are JSON."""
    command = [sys.executable, str(_SIDE), task]
    env = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        raise RuntimeError(f"bfcl-eval cannot {task}:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout)
