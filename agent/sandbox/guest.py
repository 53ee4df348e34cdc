"""The first and only program inside a sandbox: imports the packages, waits for one program, becomes it, ends.

It runs alone, beside nothing of Treadle, so it uses the standard library only. It answers one byte on standard output
when ready. Standard input then brings a line with the CPU seconds and the number of bytes of the program, and the
program; it stays open as long as the host lives.
Everything that looks at the program's text happens here, inside.
"""

import ast
import atexit
import gc
import importlib
import json
import linecache
import os
import resource
import select
import signal
import sys
import threading
import traceback
import types
from typing import Any

PROGRAM = "<program>"
CAPABILITY_VERSION_3 = 0x20080522
MEBIBYTE = 1024 * 1024


def drop_root(uid: int | None) -> None:
    """Become `uid` for good; a no-op where the sandbox was not started by root."""
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        ctypes = importlib.import_module("ctypes")
        # The right to change identity is gone by now; this empties the set that programs started later would inherit.
        ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)())


def set_limits(spec: dict[str, Any]) -> None:
    """Set the resource limits that hold for this process and each of its children."""
    memory, scratch = spec["memory_mb"] * MEBIBYTE, spec["scratch_mb"] * MEBIBYTE
    for name, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_NOFILE, 128),
        (resource.RLIMIT_FSIZE, scratch),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_NPROC, spec["max_processes"]),
    ):
        hard = resource.getrlimit(name)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(name, (value, value))


def receive() -> tuple[int, str] | None:
    """Read the CPU seconds and the program; None if the host went away instead."""
    with os.fdopen(0, "rb", closefd=False) as stream:
        header = stream.readline().split()
        body = stream.read(int(header[1])) if header else b""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.closerange(3, 4096)
    return (int(header[0]), body.decode("utf-8", "replace")) if header else None


def print_last_expression(tree: ast.Module) -> None:
    """Wrap a bare expression at the end in `print`, unless it is a call of `print` already."""
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        return
    call = last.value
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print":
        return
    printed = ast.Call(func=ast.Name(id="print", ctx=ast.Load()), args=[call], keywords=[])
    ast.copy_location(printed, call)
    last.value = ast.fix_missing_locations(printed)


def translate(text: str) -> types.CodeType:
    """Compile the program; one that does not parse raises its own SyntaxError."""
    tree = ast.parse(text, PROGRAM)
    print_last_expression(tree)
    return compile(tree, PROGRAM, "exec", dont_inherit=True)


def report(error: BaseException) -> None:
    """Print the traceback as the program would have, without the frames of this file."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != PROGRAM:
        frames = frames.tb_next
    sys.stdout.flush()
    traceback.print_exception(type(error), error, frames)


def become(text: str) -> int:
    """Run the program as `__main__`; returns its exit code, 1 after an exception, whose traceback it prints."""
    linecache.cache[PROGRAM] = (len(text), None, text.splitlines(keepends=True), PROGRAM)
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.argv = [""]
    sys.path.insert(0, "")
    try:
        exec(translate(text), module.__dict__)
    except SystemExit as error:
        return exit_code(error)
    except BaseException as error:  # noqa: BLE001 -- whatever it is, it is the program's own
        report(error)
        return 1
    return 0


def exit_code(error: SystemExit) -> int:
    """The exit code that the interpreter would use; prints the message of `sys.exit("message")`."""
    if error.code is None or isinstance(error.code, int):
        return int(error.code or 0) & 0xFF
    sys.stderr.write(f"{error.code}\n")
    return 1


def end(code: int) -> None:
    """End as the interpreter does, but for taking the imported packages apart, which costs more than most programs."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException as error:  # noqa: BLE001 -- from the program's own hooks and streams
        code = 1
        report(error)
    finally:
        os._exit(code)


def stay_first(program: int) -> None:
    """Live on as the sandbox's first process, whose end is the end of all, until the program or the host ends.

    Standard input hangs up when the host is gone. bubblewrap's own signal for that case does not reach a process
    that has left root's identity.
    """
    awake, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    events = select.poll()
    events.register(awake, select.POLLIN)
    events.register(0, 0)
    while True:
        reap(program)
        for descriptor, _ in events.poll():
            if descriptor == 0:
                # Without isolation the group is all that can be ended.
                os.killpg(0, signal.SIGKILL)
                os._exit(1)
            os.read(awake, 4096)


def reap(program: int) -> None:
    """Collect processes that have ended; ends with the program's exit code, or 128 + the signal that killed it."""
    pid = 1
    while pid:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == program:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def main() -> None:
    """Prepare, say so, run one program."""
    spec = json.loads(sys.argv[1])
    drop_root(spec["uid"])
    sys.path.extend(spec["path"])
    for name in spec["packages"]:
        importlib.import_module(name)
    # What is imported by now lives until the end: the collector need not walk it, nor copy its pages.
    gc.freeze()
    program = os.fork()
    if program:
        stay_first(program)
    set_limits(spec)
    os.write(1, b"R")
    received = receive()
    if received is not None:
        resource.setrlimit(resource.RLIMIT_CPU, (received[0], received[0] + 1))
        end(become(received[1]))


if __name__ == "__main__":
    main()
