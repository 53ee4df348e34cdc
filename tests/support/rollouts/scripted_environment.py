"""Interpreters and engine environments with a scripted process in place of the engine."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

from support.training import scripted_rl_engine

from treadle.core.engines import environments

TESTS = Path(__file__).parents[2]


def write_python(path: Path, engine: ModuleType) -> None:
    """Write an interpreter that runs this module of `support`, whatever module it is given."""
    command = shlex.join([sys.executable, "-m", engine.__name__])
    path.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(TESTS))} exec {command} "$@"\n')
    path.chmod(0o755)


def install_scripted_engine(cache: Path, **script: Any) -> dict[str, str]:
    """Let the scripted engine of `rl` be the one of a cache of engines; returns the variables under which commands that
    run in their own processes find it."""
    variables = {"TREADLE_CACHE": str(cache), scripted_rl_engine.SCRIPT: str(cache / "script.json")}
    with patch.dict("os.environ", variables):
        folder = environments.environment_path("trl", "cpu")
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    write_python(python, scripted_rl_engine)
    (folder / ".complete").touch()
    (cache / "script.json").write_text(json.dumps(script))
    return variables
