"""A small disk of its own for a test, in a mount namespace, that can be filled and freed (Linux)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.runs.failing_disk import unshare

DISK_MIB = 96


@dataclass
class Disk:
    """A disk of its own for the root, in a mount namespace that lasts as long as a process."""

    path: Path
    keeper: subprocess.Popen[bytes]

    @property
    def seen(self) -> Path:
        """Return its path as seen from outside."""
        return Path(f"/proc/{self.keeper.pid}/root{self.path}")

    def enter(self, folder: Path, argv: tuple[str, ...]) -> list[str]:
        """Return a command that runs inside the mount; the process is the command's own."""
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        return ["nsenter", "--target", str(self.keeper.pid), *user, "--mount", "env", "-C", str(folder), *argv]

    def fill(self) -> None:
        """Take what is free."""
        with (self.seen / "ballast").open("ab", buffering=0) as ballast:
            for size in (1 << 20, 1 << 12, 1):
                try:
                    while ballast.write(bytes(size)) == size:
                        pass
                except OSError:
                    continue

    def free(self) -> None:
        """Give it back."""
        (self.seen / "ballast").unlink()


@contextmanager
def disk(path: Path) -> Iterator[Disk]:
    """Yield a small disk at an empty folder, for the length of a block."""
    path.mkdir()
    script = f"mount -t tmpfs -o size={DISK_MIB}m none {path} && echo && exec cat"
    # It ends with our end of the pipe.
    with subprocess.Popen([*unshare(), "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as keeper:
        assert keeper.stdout is not None and keeper.stdout.readline() == b"\n"
        yield Disk(path, keeper)
