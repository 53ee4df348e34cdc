"""Supervise an engine for Treadle, so that no process of the engine outlives the run.

Run by path with `python -S -E -I`, so that it starts in milliseconds and imports nothing of ours. It becomes the reaper
of all descendants, starts the engine in a session of its own, and watches the pipe to its parent. When that pipe
closes, for whatever reason (including `kill -9` of the parent), it sends SIGTERM to the engine's group, waits (at
most a second if the parent has ended), and then kills every descendant, even if it forked or changed its session, until
all have ended.

Arguments: grace in seconds, pid of the parent, command... Standard input is the pipe, standard output takes one JSON
line (`{"pid": n}` or `{"error": text}`), standard error is the log. Exits with the engine's code, 128 + n for signal n.
Anything written to the pipe lets the engine outlive the parent: then only SIGTERM, SIGINT or SIGHUP stop it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.5
_ORPHAN_GRACE_S = 1.0
"""Longest grace period once the parent has ended. All processes must end within 10 s, of which a run that lost its own
parent may have used half."""
_LIBC = ctypes.CDLL(None, use_errno=True)


def main() -> int:
    """Start the engine, wait until it ends or the parent has ended, clean up; return the exit code."""
    grace_s, parent, command = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    if not become_reaper():
        _report({"error": "this kernel has no child subreapers (Linux 3.4 or newer is needed)"})
        return 127
    wake = wake_on_children()
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: stopping.append(number))
    child = _start(command)
    if child is None:
        return 127
    status, parent = _watch(child, parent, wake, stopping)
    if status is None:
        status = _terminate(child, parent, grace_s)
    kill_descendants()
    code = os.waitstatus_to_exitcode(status) if status is not None else -signal.SIGKILL
    return code if code >= 0 else 128 - code


def become_reaper() -> bool:
    """Make this process the parent of its orphaned descendants; return whether the kernel can do so."""
    return bool(_LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def wake_on_children() -> int:
    """Return a descriptor that becomes readable when a child ends."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    return wake_read


def die_with_parent(parent: int) -> None:
    """End this fresh child of `parent` as soon as the parent ends, or at once if it already has."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(127)


def _report(message: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()
    os.close(1)


def _start(command: list[str]) -> int | None:
    """Fork and exec the engine and report its pid; if it cannot be started, report why and return None."""
    error_read, error_write = os.pipe()
    supervisor = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            die_with_parent(supervisor)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            os.dup2(2, 1)
            os.execvpe(command[0], command, os.environ)
        except OSError as error:
            os.write(error_write, str(error).encode())
        os._exit(127)
    os.close(error_write)
    with os.fdopen(error_read, "rb") as pipe:
        problem = pipe.read().decode(errors="replace")
    if problem:
        os.waitpid(pid, 0)
        _report({"error": problem})
        return None
    _report({"pid": pid})
    return pid


def _watch(child: int, parent: int, wake: int, stopping: list[int]) -> tuple[int | None, int]:
    """Wait for the engine's end or for the order to stop.

    Return the engine's wait status, None if it has to be stopped; and the parent that it depends on, 0 if none.
    """
    while True:
        status = _reap(child)
        if status is not None:
            return status, parent
        # Read the pipe before checking the parent: it may have released the engine and ended since.
        if parent and select.select([0], [], [], 0)[0]:
            if not os.read(0, 4096):
                return None, parent
            parent = 0
        # A process that was forked from the parent may keep the pipe open after it ends, so check the pid as well.
        if stopping or _is_orphan(parent):
            return None, parent
        ready, _, _ = select.select([0, wake] if parent else [wake], [], [], _POLL_S)
        if wake in ready:
            os.read(wake, 4096)


def _is_orphan(parent: int) -> bool:
    return bool(parent) and os.getppid() != parent


def _reap(child: int) -> int | None:
    """Reap all children that have ended; return the wait status of `child` if it was among them."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == child:
            found = status


def _terminate(child: int, parent: int, grace_s: float) -> int | None:
    """Send SIGTERM to the engine's group; return its wait status, or None if it did not end within the grace period.

    The grace period is short if the parent has ended, because then no process waits for an orderly end.
    """
    began = time.monotonic()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGTERM)
    while time.monotonic() - began < (min(grace_s, _ORPHAN_GRACE_S) if _is_orphan(parent) else grace_s):
        status = _reap(child)
        if status is not None:
            return status
        time.sleep(0.02)
    return _reap(child)


def kill_descendants() -> None:
    """Kill and reap until no child is left: orphans become our children, so no child means no descendant."""
    while True:
        for pid in _descendants():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def _descendants() -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
            children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    queue = [os.getpid()]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


if __name__ == "__main__":
    sys.exit(main())
