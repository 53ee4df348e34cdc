"""Ending with the process that started this one, so that a killed worker or script leaves no run behind.

The kernel's parent-death signal is no way to do it: it comes when the parent's *thread* ends, which is usual.
"""

from __future__ import annotations

import os
import signal
import threading
import time

POLL_S = 0.5
GRACE_S = 4.0
"""Time for an orderly end; children under supervisors are gone a moment after it."""
_EXIT_CODE = 130


def stays_behind() -> bool:
    """Whether this process was started to outlive what started it: with `nohup` or `setsid`, or on a terminal.

    On a terminal the kernel's SIGHUP is what ends it, and the shell's `disown` what keeps it.
    """
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN or os.getsid(0) == os.getpid():
        return True
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def end_with_parent() -> None:
    """From now on, end like on SIGTERM when the parent is gone; after GRACE_S at once. Does nothing the second time."""
    if not any(thread.name == _watch.__name__ for thread in threading.enumerate()):
        threading.Thread(target=_watch, args=(os.getppid(),), name=_watch.__name__, daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os._exit(_EXIT_CODE)
