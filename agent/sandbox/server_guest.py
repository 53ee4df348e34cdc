"""Run inside a sandbox as its first process: start a server, reap processes, and end with the server.

The server has this process's standard streams. Its end, or the end of standard input, which closes when Treadle ends,
ends the sandbox. A server whose input has closed gets `GRACE_S` to exit by itself. Only the standard library and
`guest` exist here.
"""

import contextlib
import json
import os
import resource
import select
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(__file__))
from guest import drop_root  # type: ignore[import-not-found]

GRACE_S = 2.0
MAX_DESCRIPTORS = 1024


def main() -> None:
    """Drop rights, start the server, and wait for its end."""
    spec = json.loads(sys.argv[1])
    drop_root(spec["uid"])
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_MSGQUEUE: 0, resource.RLIMIT_NOFILE: MAX_DESCRIPTORS}
    # Before Linux 5.14 an ordinary user's other processes would count, too.
    if spec["uid"] is not None or kernel() >= (5, 14):
        limits[resource.RLIMIT_NPROC] = spec["max_processes"]
    for name, value in limits.items():
        with contextlib.suppress(ValueError):  # A hard limit is lower.
            resource.setrlimit(name, (value, value))
    # This variable was set for this interpreter, not for the server.
    os.environ.pop("LD_LIBRARY_PATH", None)
    server = os.fork()
    if not server:
        start(spec["command"])
    wait_for_end(server)


def kernel() -> tuple[int, ...]:
    """Return major and minor version of the kernel."""
    return tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])


def start(command: list[str]) -> None:
    """Execute the server's command; never return."""
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"cannot execute {command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def wait_for_end(server: int) -> None:
    """Reap processes until the server has ended, or did not end after its input was closed; then exit."""
    awake, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    events = select.poll()
    events.register(awake, select.POLLIN)
    events.register(0, 0)
    until = None
    while until is None or time.monotonic() < until:
        reap(server)
        for descriptor, _ in events.poll(None if until is None else 1000 * GRACE_S):
            if descriptor == 0:
                events.unregister(0)
                until = time.monotonic() + GRACE_S
            else:
                os.read(awake, 4096)
    os._exit(1)


def reap(server: int) -> None:
    """Reap ended processes; exit with the server's exit code, or 128 + the signal that killed it."""
    pid = 1
    while pid:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == server:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
