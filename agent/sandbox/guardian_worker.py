"""The process that starts sandboxes for Treadle and sees to it that none outlives it.

Run by path with `python -S -E -I`, so that it starts in milliseconds and imports nothing of ours but the supervisor of
engines, whose folder is its first argument; the second is Treadle's process id. It has a session of its own and is the
reaper of all that it starts. When its socket to Treadle closes, for whatever reason, `kill -9` included, it kills every
descendant until none is left: also a half-made sandbox, whose processes still wait for each other.

Standard input is the socket; a message is one JSON object. `{"start": id, "argv", "env", "cwd"}` comes with
descriptors: 0, 1, 2 of the new process, the pipe on which JSON lines tell of it (`{"pid"}` or `{"error"}`, then
`{"code"}`), and what it gets as 3 and on. `{"kill": id}` kills its process group, unless it has ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import sys

sys.path.append(sys.argv[1])
import supervisor  # type: ignore[import-not-found]

MAX_MESSAGE_BYTES = 1 << 20
MAX_DESCRIPTORS = 16
_POLL_S = 0.5
_HIGH = 64
"""Above every number that a new process gets."""


def main() -> None:
    """Serve until Treadle is gone, then clear up."""
    parent = int(sys.argv[2])
    supervisor.become_reaper()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())
    wake = supervisor.wake_on_children()
    requests = socket.socket(fileno=0)
    started: dict[int, tuple[int, int]] = {}
    ending: dict[int, tuple[int, int]] = {}
    try:
        while os.getppid() == parent:
            ready, _, _ = select.select([requests, wake], [], [], _POLL_S)
            if wake in ready:
                os.read(wake, 4096)
                _reap(started, ending)
            if requests in ready and not _serve(requests, started):
                return
    finally:
        supervisor.kill_descendants()


def _serve(requests: socket.socket, started: dict[int, tuple[int, int]]) -> bool:
    """Carry out one request; False when there will be none any more. `started` holds pid -> its id, its pipe."""
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
    try:
        pid = os.fork()
    except OSError as error:  # No more processes: said of this one, while the others live on.
        _tell(descriptors[3], error=str(error))
        for descriptor in descriptors:
            os.close(descriptor)
        return True
    if pid == 0:
        _become(request, descriptors)
    news = descriptors.pop(3)
    started[pid] = request["start"], news
    for descriptor in descriptors:
        os.close(descriptor)
    return True


def _become(request: dict[str, object], descriptors: list[int]) -> None:
    """In the child: take the descriptors and become the command; does not return."""
    kept = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _HIGH) for descriptor in descriptors]
    news = kept.pop(3)
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        for place, descriptor in enumerate(kept):
            os.dup2(descriptor, place)
        os.closerange(len(kept), _HIGH)
        # When the machine runs out of memory, the kernel ends sandboxes before anything else.
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "wb", buffering=0) as file:
            file.write(b"1000")
        os.chdir(str(request["cwd"]))
        _tell(news, pid=os.getpid())
        argv: list[str] = request["argv"]  # type: ignore[assignment]
        os.execve(argv[0], argv, request["env"])  # type: ignore[arg-type]
    except OSError as error:
        _tell(news, error=str(error))
    finally:
        os._exit(127)


def _reap(started: dict[int, tuple[int, int]], ending: dict[int, tuple[int, int]]) -> None:
    """Collect all that have ended; tell Treadle of those that it had started once their groups are gone too.

    `ending` holds pid -> exit code, its pipe of those that have ended before the rest of their group.
    """
    while (pid := _ended_child()) is not None:
        if pid not in started:
            os.waitpid(pid, 0)
            continue
        # What it left in its group goes too: nobody else can have the group's number before it is reaped.
        _kill_group(pid)
        _, status = os.waitpid(pid, 0)
        ending[pid] = os.waitstatus_to_exitcode(status), started.pop(pid)[1]
    for pid in [pid for pid in ending if _is_empty(pid)]:
        code, news = ending.pop(pid)
        _tell(news, code=code)
        os.close(news)


def _ended_child() -> int | None:
    """A child that has ended and is not reaped."""
    with contextlib.suppress(ChildProcessError):
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return ended.si_pid if ended is not None else None
    return None


def _is_empty(group: int) -> bool:
    """Whether no process of a group is left; the guardian inherits each one whose parent has ended."""
    try:
        os.waitid(os.P_PGID, group, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def _kill_group(pid: int) -> None:
    # Until the child has made a group of its own, there is only itself.
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _tell(news: int, **facts: object) -> None:
    with contextlib.suppress(OSError):
        os.write(news, json.dumps(facts).encode() + b"\n")


if __name__ == "__main__":
    main()
