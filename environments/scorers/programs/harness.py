"""Run inside a sandbox: make calls of a program's functions, each in a process of its own, and write what they return.

The sandbox contains no other file of Treadle, so this module imports only the standard library, and two modules that
`runs` sends along. It reads one line of JSON: `code`, `function` (its name, if `code` is text in which a program has to
be found, else null), `calls`, `limit_s` (seconds per call), `stall_s`, `legacy`, `packages` and `max_chars`. For each
call it writes a line: the marker, the number of the call, and JSON with `value` (see `values.encoded`) or `error`. No
code of the program runs in the process that writes these lines, unless the sandbox allows one process only.

A stalled machine must not make a right answer wrong. A call that has used less CPU time than `limit_s` may therefore
take longer, by `stall_s` seconds for all calls together; a call that sleeps uses this time up and then fails.
"""

import contextlib
import ctypes
import hashlib
import json
import math
import os
import select
import signal
import sys
import time
import types
from typing import Any

from treadle.environments.scorers.programs.bare_programs import program_in
from treadle.environments.scorers.programs.values import encoded

MARKER = "treadle-result:"
MAX_ERROR_CHARS = 300
ENDED = "the process ended without a result"
LATE = "time limit exceeded"
BLOCK_BYTES = 65536
SET_DEATH_SIGNAL = 1
MAX_WAIT_S = 0.1
"""Most seconds between two readings of a late call's CPU clock: several threads advance it faster than real time."""
MIN_WAIT_S = 0.005


def outcome(task: dict[str, Any], call: str) -> dict[str, Any]:
    """Define the program, make one call, and return its value or its error."""
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    scope = module.__dict__
    names = {} if task["legacy"] else scope
    try:
        code = task["code"] if task["function"] is None else program_in(task["code"], task["function"])
        exec(compile(code, "<solution>", "exec"), scope, names)
        value = encoded(eval(compile(call, "<call>", "eval"), scope, names))
        text = json.dumps(value)
        if len(text) > task["max_chars"]:
            value = ["large", hashlib.sha256(text.encode()).hexdigest()]
        return {"value": value}
    except BaseException as error:  # noqa: BLE001 -- the program can raise anything
        return {"error": described(error)}


def described(error: BaseException) -> str:
    """Return the type of an exception and the beginning of its text."""
    try:
        return f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS]
    except BaseException:  # noqa: BLE001 -- the program's own exceptions can raise anything
        return "an exception without a text"


def isolated(task: dict[str, Any], call: str, report: int) -> bytes:
    """Make one call in a process of its own, which is killed at the time limit; return JSON."""
    source, sink = os.pipe()
    try:
        child = os.fork()
    except OSError:
        os.close(source)
        os.close(sink)
        return within_limit(task, call)
    if child == 0:
        try:
            lead_group(0)
            ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, signal.SIGKILL)
            os.close(source)
            os.close(report)
            write_all(sink, line_of(outcome(task, call)))
        finally:
            os._exit(0)
    # Both processes set the group, so that it is set before either goes further.
    lead_group(child)
    os.close(sink)
    try:
        return receive(source, child, task)
    finally:
        os.close(source)
        with contextlib.suppress(OSError):
            os.killpg(child, signal.SIGKILL)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def lead_group(process: int) -> None:
    """Make a process (0 means this one) the leader of a group, so that its children can be killed together with it."""
    with contextlib.suppress(OSError):
        os.setpgid(process, process)


def within_limit(task: dict[str, Any], call: str) -> bytes:
    """Make one call in this process, interrupted at the time limit."""
    own = os.getpid()
    limit = Limit(task, own, used_s=cpu_s(own))

    def interrupt(*_: Any) -> None:
        left_s = limit.left_s()
        if left_s <= 0:
            raise TimeoutError(LATE)
        signal.setitimer(signal.ITIMER_REAL, left_s)

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, task["limit_s"])
    try:
        return line_of(outcome(task, call))
    except BaseException as error:  # noqa: BLE001 -- interrupted outside of the program
        return line_of({"error": described(error)})
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        limit.end()


def line_of(result: dict[str, Any]) -> bytes:
    """Return a result as one line of ASCII."""
    return json.dumps(result).encode() + b"\n"


class Limit:
    """Time limit of one call, extended while its process has used less CPU time than the limit."""

    def __init__(self, task: dict[str, Any], process: int, used_s: float = 0.0) -> None:
        """Start a call in a process whose CPU clock shows `used_s`; `task["stall_s"]` limits the sum of extensions."""
        self._task = task
        self._process = process
        self._used_s = used_s
        self._began = time.monotonic()

    def left_s(self) -> float:
        """Return the seconds to wait for the call until the next check; 0 or less if the call is too late."""
        left_s: float = self._task["limit_s"] - (time.monotonic() - self._began)
        if left_s > 0:
            return left_s
        stall_s: float = self._task["stall_s"] + left_s
        own_s: float = self._task["limit_s"] - (cpu_s(self._process) - self._used_s)
        if stall_s <= 0 or own_s <= 0:
            return 0.0
        return min(stall_s, max(own_s, MIN_WAIT_S), MAX_WAIT_S)

    def end(self) -> None:
        """Subtract the time by which the call exceeded its limit from the time left for extensions of later calls."""
        late_s = time.monotonic() - self._began - self._task["limit_s"]
        self._task["stall_s"] -= min(max(late_s, 0.0), self._task["stall_s"])


def cpu_s(process: int) -> float:
    """Return the CPU time that all threads of a process have used, in seconds; infinity if it cannot be read."""
    try:
        # The id of the kernel's clock of a process, as `clock_getcpuclockid` of libc makes it.
        return time.clock_gettime(~process << 3 | 2)
    except OSError:
        return math.inf


def receive(source: int, child: int, task: dict[str, Any]) -> bytes:
    """Return the line that the process of a call writes; one with an error if it ends first, is late or too long."""
    limit = Limit(task, child)
    data = bytearray()
    try:
        while not data.endswith(b"\n"):
            if not select.select([source], [], [], max(limit.left_s(), 0.0))[0]:
                if limit.left_s() <= 0:
                    return line_of({"error": LATE})
                continue
            part = os.read(source, BLOCK_BYTES)
            if not part or len(data) > 2 * task["max_chars"]:
                return line_of({"error": ENDED})
            data += part
    finally:
        limit.end()
    return bytes(data)


def write_all(sink: int, data: bytes) -> None:
    """Write all of the data to a pipe."""
    while data:
        data = data[os.write(sink, data) :]


def main() -> None:
    """Read the task, make its calls in their order, and report each."""
    task = json.loads(sys.stdin.readline())
    report = os.dup(1)
    silent = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silent, stream)
    for name in task["packages"]:
        if name in task["code"]:
            __import__(name)
    for number, call in enumerate(task["calls"]):
        write_all(report, f"\n{MARKER}{number} ".encode() + isolated(task, call, report))


if __name__ == "__main__":
    main()
