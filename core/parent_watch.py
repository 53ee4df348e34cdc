"""End this process when its parent process ends, so that a killed worker or script leaves no run behind.

The kernel's parent-death signal does not work for this: it is sent when the parent's *thread* ends, which is common.
"""

from __future__ import annotations

import os
import signal
import threading
import time

POLL_S = 0.5
GRACE_S = 4.0
"""Seconds for an orderly end; supervisors kill their children shortly after it."""
_EXIT_CODE = 130


def outlives_parent() -> bool:
    """Return whether this process was started to outlive its parent: with `nohup` or `setsid`, or on a terminal.

    On a terminal, the kernel's SIGHUP ends the process unless the shell's `disown` keeps it.
    """
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN or os.getsid(0) == os.getpid():
        return True
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def end_with_parent() -> None:
    """Send this process SIGTERM once its parent has ended, and exit GRACE_S later; a second call does nothing."""
    if not any(thread.name == _watch.__name__ for thread in threading.enumerate()):
        threading.Thread(target=_watch, args=(os.getppid(),), name=_watch.__name__, daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os._exit(_EXIT_CODE)
