"""Run inside a sandbox: make calls of a program's functions, each in a process of its own, and write what they return.

The sandbox contains no other file of Treadle, so this module imports only the standard library. It reads one line of
JSON: `code`, `calls`, `limit_s` (seconds per call), `stall_s`, `legacy`, `packages` and `max_chars`. For each call it
writes a line: the marker, the number of the call, and JSON with `value` (see `encoded`) or `error`. No code of the
program runs in the process that writes these lines, unless the sandbox allows one process only.

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

MARKER = "treadle-result:"
MAX_ERROR_CHARS = 300
ENDED = "the process ended without a result"
LATE = "time limit exceeded"
BLOCK_BYTES = 65536
SET_DEATH_SIGNAL = 1
MAX_WAIT_S = 0.1
"""Longest wait of a late call between two readings of its CPU clock, which several threads advance at once."""
MIN_WAIT_S = 0.005


class Incomparable(Exception):
    """A value whose content cannot be compared."""


def encoded(value: Any) -> list[Any]:
    """Return a value as JSON: a list of its kind and its content.

    Content is read by the methods of the built-in types, so a class that derives from one counts as that type, and an
    `__eq__` of the program has no effect. Raises Incomparable.
    """
    if value is None or isinstance(value, bool):
        return ["bool", value] if isinstance(value, bool) else ["none"]
    for base, encode in BUILT_IN:
        if isinstance(value, base):
            return list(encode(value))
    module = type(value).__module__.partition(".")[0]
    if module in BY_MODULE:
        return list(BY_MODULE[module](value))
    if type(value).__module__ == "solution":
        return of_object(value)
    raise Incomparable(f"a value of type {type(value).__name__} cannot be compared")


def of_mapping(value: dict[Any, Any]) -> list[Any]:
    """Return the pairs of a dict, sorted by their keys."""
    return ["dict", sorted(([encoded(key), encoded(one)] for key, one in dict.items(value)), key=json.dumps)]


def of_set(value: Any) -> list[Any]:
    """Return the sorted items of a set; a frozen one is equal to one that is not."""
    base = set if isinstance(value, set) else frozenset
    return ["set", sorted(map(encoded, base.__iter__(value)), key=json.dumps)]


def of_object(value: Any) -> list[Any]:
    """Return the attributes of an instance of a class that the program defines, by its name."""
    attributes = getattr(type(value), "__slots__", None)
    if isinstance(attributes, (tuple, list)):
        found = {name: getattr(value, name) for name in attributes if hasattr(value, name)}
    else:
        found = object.__getattribute__(value, "__dict__")
    return ["object", type(value).__name__, of_mapping(found)]


def of_numpy(value: Any) -> list[Any]:
    """Return an array with its shape, or a scalar as a built-in number."""
    shape = getattr(value, "shape", None)
    if shape:
        return ["array", list(shape), [encoded(one) for one in value.ravel().tolist()]]
    plain = value.item() if hasattr(value, "item") else value
    if type(plain) is type(value):
        raise Incomparable(f"a value of type {type(value).__name__} cannot be compared")
    return encoded(plain)


def of_pandas(value: Any) -> list[Any]:
    """Return a table, a column or an index; missing values are all equal."""
    name = type(value).__name__
    if name == "DataFrame":
        columns = [[encoded(column), [encoded(one) for one in value[column].tolist()]] for column in value.columns]
        return ["frame", [encoded(one) for one in value.index.tolist()], columns]
    if hasattr(value, "tolist"):
        index = value.index.tolist() if name == "Series" else []
        return ["series", [encoded(one) for one in index], [encoded(one) for one in value.tolist()]]
    return ["missing"] if name in ("NaTType", "NAType") else ["text", name, str(value)]


def of_text(value: Any) -> list[Any]:
    """Return the name of a type and the value as text, for types whose text says all."""
    return ["text", type(value).__name__, str(value)]


BUILT_IN: tuple[tuple[type, Any], ...] = (
    (int, lambda value: ["int", hex(int.__add__(value, 0))]),
    (float, lambda value: ["float", float.hex(value)]),
    (complex, lambda value: ["complex", float.hex(value.real), float.hex(value.imag)]),
    (str, lambda value: ["str", str.__getitem__(value, slice(None))]),
    (bytes, lambda value: ["bytes", bytes.hex(value)]),
    (bytearray, lambda value: ["bytes", bytearray.hex(value)]),
    (list, lambda value: ["list", [encoded(one) for one in list.__iter__(value)]]),
    (tuple, lambda value: ["tuple", [encoded(one) for one in tuple.__iter__(value)]]),
    (dict, of_mapping),
    (set, of_set),
    (frozenset, of_set),
    (range, lambda value: ["range", [hex(value.start), hex(value.stop), hex(value.step)]]),
)
"""Types in the order in which they are tried; bool, which is an int, is tried before."""
BY_MODULE: dict[str, Any] = {
    "numpy": of_numpy,
    "pandas": of_pandas,
    "sympy": of_text,
    "decimal": of_text,
    "fractions": of_text,
    "datetime": of_text,
    "collections": lambda value: ["list", [encoded(one) for one in value]],
}
"""Top-level module of a type -> how its values are encoded; of `collections` only `deque` is left here."""


def outcome(task: dict[str, Any], call: str) -> dict[str, Any]:
    """Define the program, make one call, and return its value or its error."""
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    scope = module.__dict__
    names = {} if task["legacy"] else scope
    try:
        exec(compile(task["code"], "<solution>", "exec"), scope, names)
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
    """Let a process lead a group, with which the processes that it starts are killed; 0 for this one."""
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
        """Start a call of a process whose CPU clock shows `used_s`; `task["stall_s"]` is what calls may extend."""
        self._task = task
        self._process = process
        self._used_s = used_s
        self._began = time.monotonic()

    def left_s(self) -> float:
        """Return how long to wait for the call before asking again; 0 or less once it is too late."""
        left_s: float = self._task["limit_s"] - (time.monotonic() - self._began)
        if left_s > 0:
            return left_s
        stall_s: float = self._task["stall_s"] + left_s
        own_s: float = self._task["limit_s"] - (cpu_s(self._process) - self._used_s)
        if stall_s <= 0 or own_s <= 0:
            return 0.0
        return min(stall_s, max(own_s, MIN_WAIT_S), MAX_WAIT_S)

    def end(self) -> None:
        """Take what the call took too long from what later calls may extend."""
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
    """Return the line that the process of a call writes, or one that says why there is none."""
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
