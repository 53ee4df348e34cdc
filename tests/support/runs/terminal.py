"""A command on a terminal of its own, which can be typed at, read, and closed."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import subprocess
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from support.runs.command_line import TREADLE, environment
from support.runs.processes import end_family, until

CTRL_C = b"\x03"


class Terminal:
    """The user's end of a pseudo terminal with one program on it."""

    def __init__(self, program: list[str], folder: Path, *, ignores_hangup: bool, env: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        self._shown = bytearray()

        def own_terminal() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            signal.signal(signal.SIGHUP, signal.SIG_IGN if ignores_hangup else signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_DFL)

        self.process = subprocess.Popen(
            program,
            cwd=folder,
            env=environment(TERM="xterm", **env),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=own_terminal,
        )
        os.close(theirs)
        self._closing, self._close = os.pipe()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        """Read until no program is on it any more, or it is closed; no read is under way when it is closed."""
        with suppress(OSError):
            while self._closing not in select.select([self._ours, self._closing], [], [])[0]:
                self._shown += os.read(self._ours, 65536)
        os.close(self._ours)

    @property
    def shown(self) -> str:
        """All that was written to it."""
        return self._shown.decode(errors="replace")

    def shows(self, words: str) -> None:
        """Wait until it shows some words."""
        until(lambda: words in self.shown or self.process.poll() is not None, f"it shows {words!r}: {self.shown}")
        assert words in self.shown, self.shown

    def type(self, data: bytes) -> None:
        """Press keys."""
        os.write(self._ours, data)

    def hang_up(self) -> None:
        """Close the terminal, as its window or connection does."""
        os.write(self._close, b"x")
        self._reader.join()

    def ended(self) -> int:
        """Wait for the end of the program; returns its exit code."""
        code = self.process.wait(timeout=120)
        self._reader.join(timeout=120)
        return code


@contextmanager
def on_terminal(
    folder: Path, *arguments: str, ignores_hangup: bool = False, shell: bool = False, **env: str
) -> Iterator[Terminal]:
    """Run `treadle` on a terminal; with `shell`, in the foreground of a shell that waits for it."""
    command = [TREADLE, *arguments]
    terminal = Terminal(
        ["sh", "-c", '"$@"; true', "sh", *command] if shell else command, folder, ignores_hangup=ignores_hangup, env=env
    )
    try:
        yield terminal
    finally:
        if terminal.process.poll() is None:
            end_family(terminal.process)
