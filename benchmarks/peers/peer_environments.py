"""Manage one virtual environment per peer, with pinned versions, in Treadle's cache or a folder of the user."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import work

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Peer:
    """A tool that does the work: its script is `<name>_peer.py`, its pins are `requirements-<name>.txt`."""

    name: str
    package: str
    """Name of its distribution; its version is shown."""
    kinds: tuple[str, ...]
    """Supported kinds of work."""

    @property
    def script(self) -> Path:
        """Script that runs in its environment."""
        return _HERE / f"{self.name}_peer.py"

    @property
    def requirements(self) -> Path:
        """File with its pinned packages."""
        return _HERE / f"requirements-{self.name}.txt"

    def version(self) -> str:
        """Return the version of its package, as pinned or installed."""
        if self is TREADLE:
            from importlib.metadata import version

            return version(self.package)
        pins = dict(line.split("==") for line in self.requirements.read_text().splitlines() if "==" in line)
        return pins[self.package]


TREADLE = Peer("treadle", "treadle", (work.TOOLS, work.ROWS))
PEERS = (
    TREADLE,
    Peer("inspect", "inspect-ai", (work.TOOLS,)),
    Peer("verifiers", "verifiers", (work.TOOLS,)),
    Peer("distilabel", "distilabel", (work.ROWS,)),
    Peer("curator", "bespokelabs-curator", (work.ROWS,)),
    Peer("data_designer", "data-designer", (work.ROWS,)),
)


class NotInstalled(Exception):
    """Error of a peer that is not installed; the message gives the reason in one line."""


def python_of(peer: Peer, folder: Path, *, install: bool) -> str:
    """Return the interpreter of a peer's environment, installing it first if needed. Raise NotInstalled."""
    if peer is TREADLE:
        return sys.executable
    # New pins get a new environment.
    digest = hashlib.sha256(peer.requirements.read_bytes()).hexdigest()[:12]
    home = folder / f"{peer.name}-{digest}"
    python, done = home / "bin" / "python", home / "installed"
    if done.exists():
        return str(python)
    if not install:
        raise NotInstalled("not installed; `benchmarks/peers/compare.py` without --no-install does that")
    print(f"installing {peer.package} {peer.version()} into {home}", file=sys.stderr)
    steps = (
        [sys.executable, "-m", "venv", str(home)],
        [str(python), "-m", "pip", "install", "-q", "--no-deps", "-r", str(peer.requirements)],
    )
    for step in steps:
        made = subprocess.run(step, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if made.returncode:
            lines = [line for line in made.stderr.splitlines() if line.startswith("ERROR")]
            raise NotInstalled(f"does not install: {(lines or [made.stderr[-200:]])[-1]}")
    done.touch()
    return str(python)
