"""Run inside a sandbox: import packages until a program arrives, run the program, exit.

The sandbox contains no other file of Treadle, so this module imports only the standard library. When it is ready it
writes one byte to standard output. It then reads from standard input: a line with the limit of CPU seconds, whether a
last expression is printed, the program's length in bytes and that of its input, then the program and its input.
Standard input stays open until the host's process ends, so the program reads from another pipe. Its text is parsed
only here, inside the sandbox.
"""

import ast
import atexit
import contextlib
import ctypes
import errno
import fcntl
import gc
import importlib
import importlib.machinery
import importlib.util
import json
import linecache
import mmap
import os
import resource
import select
import signal
import site
import struct
import sys
import threading
import time
import traceback
import types
from typing import Any

PROGRAM = "<program>"
CAPABILITY_VERSION_3 = 0x20080522
MEBIBYTE = 1024 * 1024
IDLE_MS = 100
"""Time to wait for a program before each import, in milliseconds."""
FEED_BYTES = 65536
SPARE_THREADS = 1024
"""Allowance for other threads of the user: without a user namespace, the limit on processes counts them."""
CREATE_RULESET, ADD_RULE, RESTRICT_SELF, PATH_BENEATH = 444, 445, 446, 1
SET_DEATH_SIGNAL, SET_SECCOMP, SECCOMP_FILTER, SET_NO_NEW_PRIVS = 1, 22, 2, 38
SHOWN_AS: dict[str, str] = {}
"""Path on this machine -> path to show in tracebacks."""


def drop_root(uid: int | None) -> None:
    """Change to the user `uid` irrevocably; do nothing if the sandbox was not started by root."""
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        # Changing the ids has dropped all effective capabilities; this also empties the inheritable set.
        ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)())


def set_limits(spec: dict[str, Any]) -> None:
    """Set the resource limits of this process; its children inherit them."""
    memory, scratch = spec["memory_mb"] * MEBIBYTE, spec["scratch_mb"] * MEBIBYTE
    for name, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        # Counted per user, together with signals that are queued for the machine's other processes.
        (resource.RLIMIT_SIGPENDING, 64),
        (resource.RLIMIT_NOFILE, 128),
        (resource.RLIMIT_FSIZE, scratch),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_NPROC, spec["max_processes"]),
    ):
        hard = resource.getrlimit(name)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(name, (value, value))


def threads_of_user() -> int:
    """Return how many threads of this process's user are visible on the machine."""
    number = 0
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == os.getuid():
                number += len(os.listdir(f"/proc/{name}/task"))
    return number


class ListedModules:
    """Import hook that finds the listed top-level modules without access to their parent folders."""

    def __init__(self, places: dict[str, str]) -> None:
        self.places = places

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Implement the import hook; see `importlib.abc.MetaPathFinder`."""
        place = self.places.get(name) if path is None else None
        if place is None or not os.path.isdir(place):
            return None if place is None else importlib.util.spec_from_file_location(name, place)
        init = os.path.join(place, "__init__.py")
        if os.path.exists(init):
            return importlib.util.spec_from_file_location(name, init, submodule_search_locations=[place])
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [place]
        return spec


def checked(result: int, what: str) -> int:
    """Return the result of a system call. Raises OSError if it failed."""
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def confine(spec: dict[str, Any]) -> None:
    """Drop access to files, sockets and other processes for good; see landlock(7) and seccomp(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    checked(libc.prctl(SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    checked(libc.prctl(SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0), "death signal")
    ruleset = checked(libc.syscall(CREATE_RULESET, struct.pack("=3Q", *spec["handled"]), 24, 0), "Landlock")
    for path, rights in (*spec["rules"], (".", 1 << 3)):
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("=Qi", rights, place)
        checked(libc.syscall(ADD_RULE, ruleset, PATH_BENEATH, rule, 0), f"Landlock rule for {path}")
        os.close(place)
    checked(libc.syscall(RESTRICT_SELF, ruleset, 0), "Landlock")
    os.close(ruleset)
    own, placeholder = struct.pack("=I", os.getpid()), struct.pack("=I", spec["own_process"])
    code = bytes.fromhex(spec["filter"]).replace(placeholder, own)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))
    checked(libc.prctl(SET_SECCOMP, SECCOMP_FILTER, program, 0, 0), "system-call filter")


def share_without_anonymous_memory(scratch: str | None) -> None:
    """Make `mmap.mmap(-1, n)` work although the system-call filter refuses shared anonymous memory.

    It maps an unlinked file in the scratch directory. Without one (`None`), only one process is allowed, so it maps
    private memory.
    """

    class Shared(mmap.mmap):
        def __new__(cls, fileno: int, length: int, flags: int = mmap.MAP_SHARED, *args: Any, **kwargs: Any) -> Any:
            if fileno != -1 or not flags & mmap.MAP_SHARED:
                return super().__new__(cls, fileno, length, flags, *args, **kwargs)
            flags &= ~(mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
            if scratch is None:
                flags |= mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
                return super().__new__(cls, -1, length, flags, *args, **kwargs)
            file = os.open(scratch, os.O_TMPFILE | os.O_RDWR)
            try:
                os.ftruncate(file, length)
                return super().__new__(cls, file, length, flags | mmap.MAP_SHARED, *args, **kwargs)
            finally:
                os.close(file)

    Shared.__name__ = Shared.__qualname__ = "mmap"
    Shared.__module__ = "mmap"
    mmap.mmap = Shared  # type: ignore[misc]


def emulate_flock_with_ranges() -> None:
    """Emulate `fcntl.flock`, which the system-call filter refuses, with locks of byte ranges.

    As on NFS, LOCK_EX needs a file open for writing and LOCK_SH one open for reading, and locks of `fcntl.lockf`
    conflict with them.
    """
    kinds = {fcntl.LOCK_SH: fcntl.F_RDLCK, fcntl.LOCK_EX: fcntl.F_WRLCK, fcntl.LOCK_UN: fcntl.F_UNLCK}

    def flock(fd: Any, operation: int, /) -> None:
        kind = kinds.get(operation & ~fcntl.LOCK_NB)
        if kind is None:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        # Like those of flock, these locks belong to the open file description; they cover the whole file.
        command = fcntl.F_OFD_SETLK if operation & fcntl.LOCK_NB else fcntl.F_OFD_SETLKW
        fcntl.fcntl(fd, command, struct.pack("hhqqi4x", kind, 0, 0, 0, 0))

    fcntl.flock = flock


class DatabasesWithoutWal:
    """Import hook that makes `sqlite3` ignore `pragma journal_mode=wal`.

    With a write-ahead log, SQLite queries locks with F_GETLK, which the system-call filter always answers with
    "locked". With a rollback journal it does not.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Implement the import hook; see `importlib.abc.MetaPathFinder`."""
        if name != "sqlite3":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                load(module)
                self.change(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def change(self, sqlite3: Any) -> None:
        """Make new connections ignore `pragma journal_mode=wal`."""
        open_database = sqlite3.connect

        def allow(action: int, first: str | None, second: str | None, *_: Any) -> int:
            is_wal = action == sqlite3.SQLITE_PRAGMA and f"{first}={second}".lower() == "journal_mode=wal"
            return int(sqlite3.SQLITE_IGNORE if is_wal else sqlite3.SQLITE_OK)

        def connect(*args: Any, **options: Any) -> Any:
            connection = open_database(*args, **options)
            connection.set_authorizer(allow)
            return connection

        sqlite3.connect = sqlite3.dbapi2.connect = connect


def run_change_times_before_use() -> None:
    """Make `os.utime` fail for a missing file although the filter only pretends success; `Path.touch` needs it."""
    change_times = os.utime

    def utime(path: Any, *args: Any, **options: Any) -> None:
        os.stat(path, dir_fd=options.get("dir_fd"), follow_symlinks=options.get("follow_symlinks", True))
        change_times(path, *args, **options)

    os.utime = utime
    for able in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        if change_times in able:
            able.add(utime)


def import_while_idle(names: list[str]) -> None:
    """Import packages until a program arrives; the program itself imports the remaining ones that it needs.

    A sandbox that waits long enough imports all packages; one that is needed at once does not waste time on them.
    """
    events = select.poll()
    events.register(0, select.POLLIN)
    for name in names:
        if events.poll(IDLE_MS):
            break
        try:
            importlib.import_module(name)
        except Exception:  # noqa: BLE001 -- the program gets the same error if it imports the package
            break
    gc.freeze()


def receive(sizes: int, source: int) -> tuple[int, bool, str] | None:
    """Read the limit of CPU seconds, whether to print a last expression, and the program; None if the input ends first.

    Announce the size of the program's input to the first process, and make `source` the standard input.
    """
    header = b""
    # One byte at a time: what follows the program is for the first process.
    while not header.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return None
        header += byte
    cpu_s, prints_value, size, input_size = map(int, header.split())
    body = bytearray()
    while len(body) < size:
        part = os.read(0, size - len(body))
        if not part:
            return None
        body += part
    os.write(sizes, b"%d" % input_size)
    os.dup2(source, 0)
    os.closerange(3, 4096)
    return cpu_s, bool(prints_value), body.decode("utf-8", "replace")


def print_last_expression(tree: ast.Module) -> None:
    """Wrap a bare expression at the end of the program in `print`, unless it is a call of `print`."""
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        return
    call = last.value
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print":
        return
    printed = ast.Call(func=ast.Name(id="print", ctx=ast.Load()), args=[call], keywords=[])
    ast.copy_location(printed, call)
    last.value = ast.fix_missing_locations(printed)


def translate(text: str, prints_value: bool) -> types.CodeType:
    """Compile the program; raise SyntaxError if it does not parse."""
    tree = ast.parse(text, PROGRAM)
    if prints_value:
        print_last_expression(tree)
    return compile(tree, PROGRAM, "exec", dont_inherit=True)


def report(error: BaseException) -> None:
    """Print the traceback of a program's exception, without the frames of this file."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != PROGRAM:
        frames = frames.tb_next
    sys.stdout.flush()
    text = "".join(traceback.format_exception(type(error), error, frames))
    for path, shown in SHOWN_AS.items():
        text = text.replace(path, shown)
    sys.stderr.write(text)


def run_as_main_module(text: str, prints_value: bool) -> int:
    """Run the program as `__main__` and return its exit code; after an exception, print its traceback and return 1."""
    linecache.cache[PROGRAM] = (len(text), None, text.splitlines(keepends=True), PROGRAM)
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.argv = [""]
    sys.path.insert(0, "")
    try:
        exec(translate(text, prints_value), module.__dict__)
    except SystemExit as error:
        return exit_code(error)
    except BaseException as error:  # noqa: BLE001 -- the program can raise anything
        report(error)
        return 1
    return 0


def exit_code(error: SystemExit) -> int:
    """Return the exit code that the interpreter would use; print the message of `sys.exit("message")`."""
    if error.code is None or isinstance(error.code, int):
        return int(error.code or 0) & 0xFF
    sys.stderr.write(f"{error.code}\n")
    return 1


def end(code: int) -> None:
    """Exit like the interpreter, but skip deleting the imported modules, which takes longer than most programs."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        # A program may put its own stream in place of the first one, write to that at its end, or close it.
        for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
    except BaseException as error:  # noqa: BLE001 -- from the program's own hooks and streams
        code = 1
        report(error)
    finally:
        os._exit(code)


class Feeder:
    """Passes the program's input from the sandbox's standard input to a pipe, which it then closes."""

    def __init__(self, events: select.poll, sizes: int, sink: int) -> None:
        os.set_blocking(sink, False)
        self.events, self.sizes, self.sink = events, sizes, sink
        self.remaining, self.chunk = 0, b""
        events.register(0, 0)
        events.register(sizes, select.POLLIN)

    def step(self, descriptor: int) -> None:
        """Handle a ready descriptor: read the size of the input, read a chunk of input, or write one."""
        if descriptor == self.sizes:
            self.remaining = int(os.read(descriptor, 32) or b"0")
            self.events.unregister(descriptor)
            os.close(descriptor)
        elif descriptor == self.sink:
            self.events.unregister(descriptor)
            try:
                self.chunk = self.chunk[os.write(descriptor, self.chunk) :]
            except BrokenPipeError:  # The program has closed its input.
                self.remaining, self.chunk = 0, b""
        else:
            self.chunk = os.read(0, min(self.remaining, FEED_BYTES))
            self.remaining -= len(self.chunk)
        self.events.register(0, select.POLLIN if self.remaining and not self.chunk else 0)
        if self.chunk:
            self.events.register(self.sink, select.POLLOUT)
        elif not self.remaining:
            os.close(self.sink)


def run_as_init(program: int, sizes: int, sink: int) -> None:
    """Run as the sandbox's first process, whose end ends all others, until the program or the host ends.

    Standard input closes when the host ends. bubblewrap's signal for that case does not reach a process that changed
    its user from root. `sizes` tells the size of the program's input, which goes to `sink`.
    """
    awake, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    events = select.poll()
    events.register(awake, select.POLLIN)
    feeder = Feeder(events, sizes, sink)
    while True:
        wait_for_program(program)
        for descriptor, happened in events.poll():
            if descriptor == 0 and happened & ~select.POLLIN:
                # Without a process namespace, kill at least the process group.
                os.killpg(0, signal.SIGKILL)
                os._exit(1)
            if descriptor == awake:
                os.read(awake, 4096)
            else:
                feeder.step(descriptor)


def wait_for_program(program: int) -> None:
    """Reap ended processes; exit with the program's exit code, or 128 + the signal that killed it."""
    pid = 1
    while pid:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == program:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def main() -> None:
    """Prepare the sandbox, report that it is ready, and run one program."""
    # Imports create many objects and hardly any garbage; garbage collection would make them a tenth slower.
    gc.disable()
    spec = json.loads(sys.argv[1])
    landlock = spec["landlock"]
    drop_root(spec["uid"])
    sys.path.extend(spec["path"])
    if landlock:
        SHOWN_AS.update(landlock["shown_as"])
        sys.meta_path.append(ListedModules(landlock["modules"]))
        # The interpreter runs with -S, which hides packages that are not listed, so `site` does not define these.
        site.setquit()
        site.sethelper()
        if spec["uid"] is None:
            spec["max_processes"] += threads_of_user() + SPARE_THREADS
    before, idle = spec["packages"], []
    if not spec["eager"]:
        before, idle = before[:1], before[1:]
    for name in before:
        importlib.import_module(name)
    # Imported objects are never freed. If the collector visited them after the fork, their pages would be copied.
    gc.freeze()
    (sizes, announced), (source, sink) = os.pipe(), os.pipe()
    program = os.fork()
    if program:
        os.close(announced)
        os.close(source)
        run_as_init(program, sizes, sink)
    set_limits(spec)
    if landlock:
        confine(landlock)
    if spec["share"] != "anonymously":
        share_without_anonymous_memory(os.getcwd() if spec["share"] == "in files" else None)
    if spec["files"] == "own":
        emulate_flock_with_ranges()
        sys.meta_path.insert(0, DatabasesWithoutWal())
    elif spec["files"] == "shared":
        run_change_times_before_use()
    os.write(1, b"R")
    import_while_idle(idle)
    gc.enable()
    received = receive(announced, source)
    if received is not None:
        cpu_s, prints_value, text = received
        cpu_s += int(time.process_time())
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
        end(run_as_main_module(text, prints_value))


if __name__ == "__main__":
    main()
