"""A working directory for the commands of a documentation page: the files of a checkout, and fast commands."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from support.docs_pages import ROOT, Block
from support.runs.command_line import environment

END_S = 300.0
"""Only a command that hangs takes longer."""
_NOTHING_RIGHT = re.compile(r"^\S.* 0\.000 \[|[\d,]+ of [\d,]+ questions are not from the sample world", re.M)
"""An accuracy of nothing, with its interval; and the words by which the tutor says so."""
STAND_INS = Path(__file__).with_name("docs_stand_ins")


@dataclass(frozen=True)
class Shell:
    """Runs commands with what is in `bin` first on the path, and with `variables`."""

    bin: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    def run(self, text: str, folder: Path, what: str) -> str:
        """Run commands in a shell that stops at the first failure; return their output."""
        path = os.pathsep.join([str(self.bin), str(Path(sys.executable).parent), os.environ["PATH"]])
        with (folder / ".said").open("w+") as said:
            shell = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", text],
                cwd=folder, env=environment(**{**self.variables, "PATH": path, "PYTHONPATH": str(ROOT / "tests")}),
                stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True,
            )  # fmt: skip
            try:
                code = shell.wait(timeout=END_S)
            finally:
                if shell.poll() is None:
                    os.killpg(shell.pid, signal.SIGKILL)
                    shell.wait()
            said.seek(0)
            output = said.read()
            assert code == 0, f"{what}, exit code {code}: {output[-3000:]}"
            return output

    def run_block(self, block: Block, folder: Path) -> str:
        """Run the commands of a block; fail if they print a figure of a run without results."""
        what = f"{block.page.relative_to(ROOT)}, line {block.line}"
        said = self.run(block.text, folder, what)
        assert not _NOTHING_RIGHT.search(said), f"{what}: a reader's first figure is 0.000: {said[-3000:]}"
        return said


def new_folder(folder: Path, shell: Shell) -> Path:
    """Make a folder with everything from a checkout that the pages' commands name, except their outputs."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "configs").symlink_to(ROOT / "configs")
    (folder / ".venv").mkdir()
    (folder / ".venv/bin").symlink_to(shell.bin)
    return folder


def prepared(commands: tuple[str, ...], store: Path, shell: Shell) -> Path:
    """Return the folder that commands leave behind, made once for all processes that share `store`: copy it."""
    folder = store / hashlib.sha256("\n".join(commands).encode()).hexdigest()[:12]
    with locked(folder.with_suffix(".lock")):
        if not folder.is_dir():
            made = folder.with_suffix(".made")
            shutil.rmtree(made, ignore_errors=True)
            if len(commands) > 1:
                shutil.copytree(prepared(commands[:-1], store, shell), made, symlinks=True)
            else:
                new_folder(made, shell)
            if commands:
                shell.run(commands[-1], made, f"before pages: {commands[-1]}")
            made.rename(folder)
    return folder


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Alone among processes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
