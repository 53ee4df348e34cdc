"""An engine environment whose engine of `rl` is a scripted process, for commands that run in their own processes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from support import scripted_rl_engine

from treadle.core.engines import environments


def install_scripted_engine(cache: Path, **script: Any) -> dict[str, str]:
    """Put it into a cache of engines; returns the variables under which commands find it."""
    variables = {"TREADLE_CACHE": str(cache), scripted_rl_engine.SCRIPT: str(cache / "script.json")}
    with patch.dict("os.environ", variables):
        folder = environments.environment_path("trl", "cpu")
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {scripted_rl_engine.__file__} "$@"\n')
    python.chmod(0o755)
    (folder / ".complete").touch()
    (cache / "script.json").write_text(json.dumps(script))
    return variables
