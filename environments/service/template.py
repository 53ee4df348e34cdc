"""Load an environment once, and fork a process for each of its instances: `python -m ...template SOCKET`.

Runs under the supervisor of engines, which kills this process and its children when the service ends. It has one thread
and only imports the environment's code. Messages are JSON datagrams on the socket at the path given:

- from the service: first `{"settings": ...}`, then `{"fork": n}` with one end of a socket pair per instance;
- to the service: `{"ready": true}` or `{"failed": line}`, then `{"forked": n}` with a descriptor of the process, or
  `{"failed_fork": n, "why": line}`.

Processes that an instance leaves behind become children of the template, which kills them.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Iterator

import orjson

from treadle.core.engines import supervisor
from treadle.core.errors import TreadleError
from treadle.environments.registry import ENVIRONMENTS, environment_type
from treadle.environments.service import worker
from treadle.environments.settings import EnvironmentSettings

MAX_MESSAGE_BYTES = 1 << 17
_POLL_S = 1.0


def main(path: str) -> int:
    """Fork processes on requests of the service until it closes the socket."""
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control.connect(path)
    supervisor.become_reaper()
    try:
        settings = ENVIRONMENTS.parse(orjson.loads(control.recv(MAX_MESSAGE_BYTES))["settings"])
        environment_type(settings)
    except (TreadleError, ValueError) as error:
        control.send(orjson.dumps({"failed": str(error)}))
        return 1
    wakeup = supervisor.wake_on_children()
    # Exempt loaded objects from garbage collection, so that the forked processes keep sharing their memory.
    gc.collect()
    gc.freeze()
    control.send(orjson.dumps({"ready": True}))
    living: set[int] = set()
    own = frozenset(_children())
    while True:
        ready, _, _ = select.select([control.fileno(), wakeup], [], [], _POLL_S)
        if wakeup in ready:
            os.read(wakeup, 4096)
            _reap(living, own)
        if control.fileno() in ready and not _serve(control, settings, living):
            return 0


def _serve(control: socket.socket, settings: EnvironmentSettings, living: set[int]) -> bool:
    """Handle one message; return False after the last one."""
    try:
        message, descriptors, _, _ = socket.recv_fds(control, MAX_MESSAGE_BYTES, 1)
    except ConnectionError:
        return False
    if not message:
        return False
    number = orjson.loads(message)["fork"]
    template = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        os.close(descriptors[0])
        control.send(orjson.dumps({"failed_fork": number, "why": error.strerror}))
        return True
    if pid == 0:
        _become_worker(template, control, settings, descriptors[0])
    living.add(pid)
    os.close(descriptors[0])
    # The service kills by this descriptor: unlike a process id, it never names another process.
    descriptor = os.pidfd_open(pid)
    with contextlib.suppress(ConnectionError):
        socket.send_fds(control, [orjson.dumps({"forked": number, "pid": pid})], [descriptor])
    os.close(descriptor)
    return True


def _become_worker(template: int, control: socket.socket, settings: EnvironmentSettings, descriptor: int) -> None:
    """Serve one instance in this newly forked child process; never return."""
    try:
        supervisor.die_with_parent(template)
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.close()
        worker.run(settings, socket.socket(fileno=descriptor))
    except BaseException:  # noqa: BLE001 - the child must not return into the template's loop
        traceback.print_exc()
    finally:
        worker.end()


def _reap(living: set[int], own: frozenset[int]) -> None:
    """Reap ended processes, and kill those they left behind; `own` are processes started by loading the environment."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if pid == 0:
            break
        if pid in living and status:
            sys.stderr.write(f"process {pid} ended with {os.waitstatus_to_exitcode(status)}\n")
        living.discard(pid)
    for pid in _children():
        if pid not in living and pid not in own:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _children() -> Iterator[int]:
    own = os.getpid()
    with contextlib.suppress(OSError), open(f"/proc/{own}/task/{own}/children", "rb") as file:
        yield from map(int, file.read().split())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
