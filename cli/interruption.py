"""Handle Ctrl-C, SIGTERM and a closed terminal: let a command clean up, then exit with one exit code.

Imports only a little of the standard library: signals are handled before anything else is loaded.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from types import FrameType
from typing import Any

INTERRUPTED = 130
_SHOW_CURSOR = b"\x1b[?25h\n"


def handle_signals() -> None:
    """Make SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt; a second SIGINT or SIGTERM ends the process at once.

    Supervised child processes end too. An ignored SIGHUP stays ignored, because `nohup` sets that.
    """
    signal.signal(signal.SIGINT, _stop)
    signal.signal(signal.SIGTERM, _stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _stop)


def exit_on_next_signal() -> None:
    """Make SIGINT and SIGTERM end the process at once, because it is about to end anyway."""
    signal.signal(signal.SIGINT, _exit_now)
    signal.signal(signal.SIGTERM, _exit_now)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        # Both the shell and the kernel send SIGHUP when a terminal closes. Use a function: children would inherit
        # SIG_IGN.
        signal.signal(signal.SIGHUP, _ignore)


def _stop(signum: int, frame: FrameType | None) -> None:
    exit_on_next_signal()
    raise KeyboardInterrupt


def _exit_now(signum: int, frame: FrameType | None) -> None:
    try:
        # A progress bar may have hidden the cursor.
        begin = _SHOW_CURSOR if os.isatty(2) else b""
        os.write(2, begin + b"treadle: stopped at once; everything finished so far is kept\n")
    except OSError:
        pass  # The terminal is closed.
    os._exit(INTERRUPTED)


def _ignore(signum: int, frame: FrameType | None) -> None:
    """Do nothing."""


class _DetachedStream(io.FileIO):
    """File of a standard stream that discards output once its reader has disconnected, instead of failing."""

    def __init__(self, descriptor: int, lost: frozenset[int] | None) -> None:
        """Wrap a descriptor; `lost`: error numbers that mean the reader has disconnected, None for all."""
        super().__init__(descriptor, "wb", closefd=False)
        self._lost = lost

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if self._lost is not None and error.errno not in self._lost:
                raise
            return memoryview(data).nbytes


def ignore_closed_terminal() -> None:
    """Keep working when a standard stream can no longer be written to.

    Standard error only reports progress, so its errors are ignored. Standard output holds results: only a closed
    terminal is ignored. A stream that was closed from the start is opened to /dev/null, so that no other file gets its
    number.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stderr = _detached_stream(sys.stderr, 2, None)
    sys.stdout = _detached_stream(sys.stdout, 1, frozenset({errno.EIO}))


def _detached_stream(stream: Any, descriptor: int, lost: frozenset[int] | None) -> Any:
    if stream is None:
        nowhere = io.BufferedWriter(_DetachedStream(descriptor, lost))
        return io.TextIOWrapper(nowhere, encoding="utf-8", errors="replace", line_buffering=True)
    try:
        if stream.fileno() != descriptor:
            return stream
        stream.flush()
    except (AttributeError, OSError, ValueError):
        return stream  # A replacement stream without a file descriptor.
    raw: Any = _DetachedStream(descriptor, lost)
    return io.TextIOWrapper(
        raw if stream.write_through else io.BufferedWriter(raw),  # As Python does with PYTHONUNBUFFERED.
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
