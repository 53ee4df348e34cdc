"""Start sandboxes for Treadle in a process of its own, and kill them all when Treadle ends.

Run by path with `python -S -E -I`, so that it starts in milliseconds and imports nothing of Treadle except
`device_nodes` and the supervisor of engines, whose folder is its first argument; the second is Treadle's process id. It
has its own session and reaps all descendants. When its socket to Treadle closes for any reason, `kill -9` included, it
kills all descendants, including incomplete sandboxes, whose processes still wait for each other.

Standard input is the socket; a message is one JSON object. `{"start": id, "argv", "env", "cwd"}` comes with
descriptors: 0, 1, 2 of the new process, the pipe for its status as JSON lines (`{"pid"}` or `{"error"}`, then
`{"code"}`), and those that it gets as 3 and following. With `"cgroup": {"parent", "limits"}` it runs in its own cgroup
below that folder if one can be made: `{"cgroup"}` reports whether it does, `{"oom"}` whether that ran out of memory.
With `"own_nodes"` it gets device nodes of its own. `{"kill": id}` kills its process group, unless it has ended.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import select
import signal
import socket
import sys
import time

sys.path += [sys.argv[1], os.path.dirname(__file__)]
import device_nodes  # type: ignore[import-not-found]
import supervisor  # type: ignore[import-not-found]

MAX_MESSAGE_BYTES = 1 << 20
MAX_DESCRIPTORS = 16
_POLL_S = 0.5
_MIN_DESCRIPTOR = 64
"""Least number of a duplicated descriptor; the descriptors of a new process all have smaller numbers."""
_REMOVE_S = 2.0
_PREFIX = "treadle-"


def main() -> None:
    """Serve requests until Treadle has ended, then kill all descendants and remove their cgroups."""
    parent = int(sys.argv[2])
    supervisor.become_reaper()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())
    wakeup = supervisor.wake_on_children()
    requests = socket.socket(fileno=0)
    started: dict[int, tuple[int, int]] = {}
    ending: dict[int, tuple[int, int]] = {}
    cgroups = Cgroups()
    try:
        while os.getppid() == parent:
            ready, _, _ = select.select([requests, wakeup], [], [], _POLL_S)
            if wakeup in ready:
                os.read(wakeup, 4096)
                _reap(started, ending, cgroups)
            cgroups.remove()
            if requests in ready and not _serve(requests, started, cgroups):
                return
    finally:
        supervisor.kill_descendants()
        cgroups.close()


class Cgroups:
    """Cgroups of the processes that the guardian started, each with a unique name."""

    def __init__(self) -> None:
        self._used: dict[int, str] = {}
        self._pending_removal: list[str] = []
        """Cgroups whose process has ended; the kernel lets them be removed once they are empty."""
        self._cleaned: set[str] = set()

    def make(self, parent: str) -> str | None:
        """Make a cgroup in a folder and remove those of dead guardians there; return None if it cannot be made."""
        if parent not in self._cleaned:
            self._cleaned.add(parent)
            self._pending_removal += _leftover_cgroups(parent)
            self.remove()
        folder = os.path.join(parent, f"{_PREFIX}{os.getpid()}-{os.urandom(8).hex()}")
        try:
            os.mkdir(folder)
        except OSError:  # `usage` then limits the memory of all processes by sampling.
            return None
        return folder

    def use(self, folder: str, pid: int) -> None:
        """Record the process that a cgroup belongs to."""
        self._used[pid] = folder

    def drop(self, folder: str) -> None:
        """Kill the processes in a cgroup and remove it as soon as it is empty."""
        kill = os.path.join(folder, "cgroup.kill")
        with contextlib.suppress(OSError):
            if os.path.exists(kill):  # Linux 5.14.
                with open(kill, "w") as file:
                    file.write("1")
        self._pending_removal.append(folder)
        self.remove()

    def end(self, pid: int) -> bool:
        """Drop the cgroup of an ended process; return whether the kernel killed a process in it for lack of memory."""
        folder = self._used.pop(pid, None)
        if folder is None:
            return False
        text = ""
        with contextlib.suppress(OSError), open(os.path.join(folder, "memory.events")) as file:
            text = file.read()
        self.drop(folder)
        return any(line.split()[0] == "oom_kill" and line.split()[1] != "0" for line in text.splitlines())

    def remove(self) -> None:
        """Remove the remaining cgroups that are empty."""
        self._pending_removal = [folder for folder in self._pending_removal if _is_busy(folder)]

    def close(self) -> None:
        """Remove all cgroups after all processes were killed; wait for the kernel to finish the last ones."""
        for pid in list(self._used):
            self.end(pid)
        until = time.monotonic() + _REMOVE_S
        while self._pending_removal and time.monotonic() < until:
            time.sleep(0.01)
            self.remove()


def _is_busy(folder: str) -> bool:
    """Remove a cgroup if it is empty; return whether a process is still in it."""
    try:
        os.rmdir(folder)
    except OSError as error:
        return error.errno == errno.EBUSY
    return False


def _leftover_cgroups(parent: str) -> list[str]:
    with contextlib.suppress(OSError):
        return [os.path.join(parent, name) for name in os.listdir(parent) if _is_leftover(name)]
    return []


def _is_leftover(name: str) -> bool:
    """Return whether the guardian that made a cgroup has ended."""
    words = name.removeprefix(_PREFIX).split("-")
    if not name.startswith(_PREFIX) or len(words) != 2 or not words[0].isdigit():
        return False
    try:
        with open(f"/proc/{words[0]}/cmdline", "rb") as file:
            return os.path.basename(__file__).encode() not in file.read()
    except OSError:
        return True


def _serve(requests: socket.socket, started: dict[int, tuple[int, int]], cgroups: Cgroups) -> bool:
    """Handle one request; return False after the last one. `started`: pid -> id of the request and status pipe."""
    try:
        message, descriptors, _, _ = socket.recv_fds(requests, MAX_MESSAGE_BYTES, MAX_DESCRIPTORS)
    except ConnectionError:
        return False
    if not message:
        return False
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    request = json.loads(message)
    if "kill" in request:
        for pid, (number, _) in started.items():
            if number == request["kill"]:
                _kill_group(pid)
        return True
    cgroup = cgroups.make(request["cgroup"]["parent"]) if request.get("cgroup") else None
    try:
        pid = os.fork()
    except OSError as error:  # No further process can be made. Report it for this one; the others keep running.
        _write_status(descriptors[3], error=str(error))
        for descriptor in descriptors:
            os.close(descriptor)
        if cgroup is not None:
            cgroups.drop(cgroup)
        return True
    if pid == 0:
        _exec_program(request, descriptors, cgroup)
    status_pipe = descriptors.pop(3)
    started[pid] = request["start"], status_pipe
    if cgroup is not None:
        cgroups.use(cgroup, pid)
    for descriptor in descriptors:
        os.close(descriptor)
    return True


def _exec_program(request: dict[str, object], descriptors: list[int], cgroup: str | None) -> None:
    """Set up descriptors and cgroup in the child process and execute the command; never return."""
    duplicates = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _MIN_DESCRIPTOR) for descriptor in descriptors]
    status_pipe = duplicates.pop(3)
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        for place, descriptor in enumerate(duplicates):
            os.dup2(descriptor, place)
        os.closerange(len(duplicates), _MIN_DESCRIPTOR)
        # When the machine runs out of memory, the kernel ends sandboxes before anything else.
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "wb", buffering=0) as file:
            file.write(b"1000")
        joined = cgroup is not None and _join_cgroup(cgroup, request["cgroup"]["limits"])  # type: ignore[index]
        if request["own_nodes"]:
            device_nodes.mount_nodes()
        os.chdir(str(request["cwd"]))
        _write_status(status_pipe, pid=os.getpid(), cgroup=joined)
        argv: list[str] = request["argv"]  # type: ignore[assignment]
        os.execve(argv[0], argv, request["env"])  # type: ignore[arg-type]
    except OSError as error:
        _write_status(status_pipe, error=str(error))
    finally:
        os._exit(127)


def _join_cgroup(folder: str, limits: dict[str, str]) -> bool:
    """Move this process into its cgroup; return False if that fails and `usage` has to limit memory by sampling."""
    try:
        for name, value in (limits | {"cgroup.procs": "0"}).items():
            # Not every kernel has every file; limits whose file is missing are skipped.
            if os.path.exists(os.path.join(folder, name)):
                with open(os.path.join(folder, name), "w") as file:
                    file.write(value)
    except OSError:
        return False
    return os.path.exists(os.path.join(folder, "memory.max"))


def _reap(started: dict[int, tuple[int, int]], ending: dict[int, tuple[int, int]], cgroups: Cgroups) -> None:
    """Reap ended children; report the exit code of started processes to Treadle once their groups are empty.

    `ending`: pid -> exit code and status pipe of processes whose group is not empty yet.
    """
    while (pid := _ended_child()) is not None:
        if pid not in started:
            os.waitpid(pid, 0)
            continue
        # Kill the rest of its group before it is reaped, because the number of the group may be reused afterwards.
        _kill_group(pid)
        _, status = os.waitpid(pid, 0)
        ending[pid] = os.waitstatus_to_exitcode(status), started.pop(pid)[1]
    for pid in [pid for pid in ending if _is_empty(pid)]:
        code, status_pipe = ending.pop(pid)
        _write_status(status_pipe, code=code, oom=cgroups.end(pid))
        os.close(status_pipe)


def _ended_child() -> int | None:
    """Return the pid of a child that has ended and is not reaped yet, or None."""
    with contextlib.suppress(ChildProcessError):
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return ended.si_pid if ended is not None else None
    return None


def _is_empty(group: int) -> bool:
    """Return whether a group has no process left; the guardian inherits processes whose parent has ended."""
    try:
        os.waitid(os.P_PGID, group, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def _kill_group(pid: int) -> None:
    # Until the child has made its own group, only the child itself can be killed.
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _write_status(status_pipe: int, **facts: object) -> None:
    with contextlib.suppress(OSError):
        os.write(status_pipe, json.dumps(facts).encode() + b"\n")


if __name__ == "__main__":
    main()
