"""Kill incomplete sandboxes that an earlier process left; a pool calls this when it starts.

While bubblewrap sets up a sandbox, its child process waits, and waits forever if bubblewrap is killed. The guardian
kills such a child; this module does it if Treadle and the guardian were killed at the same time.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from treadle.agent.sandbox.bubblewrap import GUEST

_SANDBOX_PREFIXES = {b"--die-with-parent", b"--info-fd", os.fsencode(GUEST)}


def end_leftovers() -> int:
    """Kill the leftover sandboxes of this user and this installation; return their number."""
    num_ended = 0
    for name in os.listdir("/proc"):
        if name.isdigit() and _is_leftover(int(name)):
            num_ended += _end(int(name))
    return num_ended


def _end(pid: int) -> bool:
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        # Check again, because the process id may have been reused since.
        if _is_leftover(pid):
            signal.pidfd_send_signal(process, signal.SIGKILL)
            return True
    except OSError:
        pass  # It has ended.
    finally:
        os.close(process)
    return False


def _is_leftover(pid: int) -> bool:
    """Return whether a process is a bubblewrap of this installation whose parent is neither bubblewrap nor a guardian.

    A running guardian is the parent of each bubblewrap that it started, and of the children of those that were killed.
    """
    try:
        words = _words(pid)
        if not _is_bubblewrap(words):
            return False
        facts = dict(
            line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
        )
        if int(facts["Uid"].split()[0]) != os.geteuid():
            return False
        parent = _words(int(facts["PPid"]))
    except (OSError, KeyError, ValueError):
        return False  # The process or its parent has just ended.
    return not _is_bubblewrap(parent) and not any(word.endswith(b"/guardian_worker.py") for word in parent)


def _words(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def _is_bubblewrap(words: list[bytes]) -> bool:
    return words[0].endswith(b"bwrap") and set(words) >= _SANDBOX_PREFIXES
