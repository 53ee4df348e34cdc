"""What a server in the sandbox sees of the folders in which its interpreter is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from treadle.agent.sandbox.guardian import Guardian
from treadle.agent.sandbox.server_process import ServerProcess
from treadle.agent.sandbox.servers import ServerLauncher, ServerSettings

LOOK = (
    "import json, os, sys; home = sys.argv[1]\n"
    "print([os.path.relpath(os.path.join(top, name), home) for top, _, names in os.walk(home) for name in names "
    "if 'share/python/' not in top + '/'], sys.prefix != sys.base_prefix)"
)


@pytest.mark.parametrize("copies", [False, True])
async def test_interpreter_linked_from_a_home_opens_nothing_else_of_it(tmp_path: Path, copies: bool) -> None:
    real = Path(sys._base_executable)  # type: ignore[attr-defined]
    installed, programs = tmp_path / "home/.local/share/python", tmp_path / "home/.local/bin"
    for folder in (installed.parent, programs, tmp_path / "home/.local/lib/python3.11/site-packages"):
        folder.mkdir(parents=True)
    installed.symlink_to(real.resolve().parent.parent)
    (programs / "python3").symlink_to(f"../share/python/bin/{real.name}")
    (tmp_path / "home/.local/share/secret").touch()
    (programs / "secret").touch()
    venv = tmp_path / "project/venv"
    options = ["--copies"] if copies else []
    subprocess.run([programs / "python3", "-m", "venv", "--without-pip", *options, venv], check=True)
    launcher = ServerLauncher(ServerSettings((str(venv / "bin/python"), "-c", LOOK, str(tmp_path / "home"))))
    guardian = Guardian()
    server = await ServerProcess.start(guardian, launcher, 1 << 16, lambda number: None)
    said = (await server.output.read()).decode()
    await server.close()
    guardian.close()
    assert said == "['.local/bin/python3'] True\n", server.errors()
