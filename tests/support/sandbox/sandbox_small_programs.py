"""Short hostile programs: memory that no limit counts, signals between sandboxes, per-user counts,
host paths, the machine's disks.

All of them run one after the other in one sandbox. See `sandbox_programs` for how a probe reports its result. Each one
succeeded when the system call filter was a deny list.
"""

from __future__ import annotations

HELPERS = """
import fcntl, struct
LIBRARY = os.__file__
def number(name, call_number, *arguments):
    tried(call("syscall", call_number, *arguments), name)
def lock(kind):
    return struct.pack("hhqqi4x", kind, 0, 0, 0, 0)
def lock_shown(path):
    # A lock that a process set the old way is seen by one that belongs to an open file.
    with open(path, "rb") as other:
        return fcntl.fcntl(other, 36, lock(fcntl.F_WRLCK))
def map_shared(size, descriptor):
    flags = 1 if descriptor >= 0 else 0x21
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    address = libc.mmap(None, size, 3, flags, descriptor, 0)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap")
    return address
def hold_hidden(descriptor, hide):
    # Twice the limit, of which each process maps a page at most.
    held, piece = 0, 32 << 20
    while held < 2 * HOST["memory_mb"] << 20:
        address = map_shared(piece, descriptor)
        ctypes.memset(address, 1, piece)
        hide(address, piece)
        held += piece
    return f"{held >> 20} MiB"
def unmap_tail(address, size):
    libc.munmap(ctypes.c_void_p(address + 4096), ctypes.c_size_t(size - 4096))
def page_is_cached(descriptor):
    space = ctypes.create_string_buffer(1)
    vector = struct.pack("PL", ctypes.addressof(space), 1)
    return libc.syscall(327, descriptor, vector, 1, ctypes.c_long(0), ctypes.c_long(0), 8) == 1
"""

MEMORY = {
    "shared_memory_unmapped": "tried(lambda: hold_hidden(-1, unmap_tail), 'anonymous')\n",
    "shared_memory_out_of_sight": """
def forget(address, size):
    libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), 4)
    unmap_tail(address, size)
tried(lambda: hold_hidden(-1, forget), "dropped page tables")
""",
    "shared_memory_of_a_device": """
tried(lambda: hold_hidden(os.open("/dev/zero", os.O_RDWR), unmap_tail), "/dev/zero")
""",
    "pages_pinned_in_pipes": """
page = ctypes.create_string_buffer(8192)
inlet, outlet = os.pipe()
number("vmsplice", 278, outlet, struct.pack("PL", ctypes.addressof(page), 4096), 1, 8)
for descriptor in (inlet, outlet):
    os.close(descriptor)
""",
    "pages_moved_between_pipes": """
one, two = os.pipe(), os.pipe()
os.write(one[1], b"x")
number("tee", 276, one[0], two[1], 1, 0)
number("splice", 275, one[0], None, two[1], None, 1, 0)
for descriptor in (*one, *two):
    os.close(descriptor)
""",
    "larger_pipes": """
inlet, outlet = os.pipe()
tried(lambda: fcntl.fcntl(outlet, 1031, 1 << 20), "F_SETPIPE_SZ")
for descriptor in (inlet, outlet):
    os.close(descriptor)
""",
    "larger_socket_buffers": """
import socket
tried(lambda: socket.socketpair()[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20), "SO_SNDBUF")
""",
    "filters_on_sockets": """
import socket
code = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))
program = struct.pack("HP", 1, ctypes.addressof(code))
tried(lambda: socket.socketpair()[0].setsockopt(socket.SOL_SOCKET, 26, program), "SO_ATTACH_FILTER")
""",
    "landlock_rulesets": """
number("ruleset", 444, struct.pack("Q", 1), 8, 0)
number("version", 444, None, 0, 1)
""",
    "system_call_filters": """
code = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7FFF0000))
program = struct.pack("HP", 1, ctypes.addressof(code))
number("seccomp", 317, 1, 0, program)
tried(call("prctl", 22, 2, program, 0, 0), "prctl")
""",
}
"""Memory that resource limits do not count."""

SIGNALS = {
    "locks_on_devices": """
with open("/dev/null", "r+b") as device:
    before = lock_shown("/dev/null")
    with contextlib.suppress(OSError):
        fcntl.fcntl(device, fcntl.F_SETLK, lock(fcntl.F_WRLCK))
    if lock_shown("/dev/null") != before:
        print("ESCAPED F_SETLK on /dev/null")
""",
    "locks_of_open_devices": """
with open("/dev/full", "r+b") as device:
    before = lock_shown("/dev/full")
    with contextlib.suppress(OSError):
        fcntl.fcntl(device, 37, lock(fcntl.F_WRLCK))
    if lock_shown("/dev/full") != before:
        print("ESCAPED F_OFD_SETLK on /dev/full")
""",
    "locks_on_libraries": """
for path in (LIBRARY, "/dev/urandom"):
    for command in (fcntl.F_SETLK, 37):
        with open(path, "rb") as library:
            before = lock_shown(path)
            with contextlib.suppress(OSError):
                fcntl.fcntl(library, command, lock(fcntl.F_RDLCK))
            if lock_shown(path) != before:
                print("ESCAPED", command, path)
""",
    "flock_on_devices": """
with open("/dev/urandom", "rb") as one, open("/dev/urandom", "rb") as two:
    with contextlib.suppress(OSError):
        fcntl.flock(one, fcntl.LOCK_EX)
    try:
        fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("ESCAPED flock on /dev/urandom")
    except OSError:
        pass
""",
    "flock_on_libraries": """
with open(LIBRARY, "rb") as one, open(LIBRARY, "rb") as two:
    with contextlib.suppress(OSError):
        fcntl.flock(one, fcntl.LOCK_SH)
    try:
        fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("ESCAPED flock on", LIBRARY)
    except OSError:
        pass
""",
    "watch_devices": """
watch = libc.inotify_init1(0x800)
for path in (b"/dev/null", b"/dev", LIBRARY.encode()):
    tried(call("inotify_add_watch", watch, path, 0x20), path)
""",
    "watch_folders_the_old_way": """
folder = os.open(os.path.dirname(LIBRARY), os.O_RDONLY)
tried(lambda: fcntl.fcntl(folder, 1026, 1), "F_NOTIFY")
os.close(folder)
""",
    "times_of_devices": """
for path in (LIBRARY, "/dev/null", "/dev/full", "/dev/random", "/dev/urandom"):
    before = os.stat(path)
    for way in (os.utime, lambda path: os.utime(path, (0, 0)), lambda path: os.chown(path, -1, -1)):
        with contextlib.suppress(OSError):
            way(path)
    after = os.stat(path)
    if (before.st_mtime_ns, before.st_ctime_ns) != (after.st_mtime_ns, after.st_ctime_ns):
        print("ESCAPED times of", path)
""",
    "attributes_of_devices": """
for path in ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom"):
    for change in (lambda: os.chmod(path, 0o600), lambda: os.setxattr(path, "user.x", b"x"),
                   lambda: os.chown(path, os.getuid(), -1), lambda: os.rename(path, path + "x")):
        tried(change, path)
    for flags in (0x20, 0x1020, 0x1022):
        tried(call("mount", None, path.encode(), None, flags, None), f"remount {path} {flags:#x}")
""",
    "page_cache_asked": """
with open(LIBRARY, "rb") as stream:
    stream.read(1)
    if page_is_cached(stream.fileno()):
        print("ESCAPED RWF_NOWAIT")
""",
    "page_cache_emptied": """
path = os.path.join(os.path.dirname(LIBRARY), "nturl2path.py")
with open(path, "rb") as stream:
    stream.read(1)
    before = page_is_cached(stream.fileno())
    with contextlib.suppress(OSError):
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if before and not page_is_cached(stream.fileno()):
        print("ESCAPED fadvise")
""",
    "page_cache_filled": """
with open(LIBRARY, "rb") as stream:
    number("readahead", 187, stream.fileno(), ctypes.c_long(0), ctypes.c_long(4096))
""",
    "page_cache_of_memory": """
import mmap
with open(LIBRARY, "rb") as stream:
    mapped = mmap.mmap(stream.fileno(), 4096, prot=mmap.PROT_READ)
address = ctypes.c_void_p(int.from_bytes(ctypes.string_at(id(mapped) + 16, 8), "little"))
number("mincore", 27, address, ctypes.c_long(4096), ctypes.create_string_buffer(1))
""",
}
"""What one sandbox could tell another with, since both see the same file."""

FIRST = {
    "first_process_idle": "tried(lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0)), 'scheduler')\n",
    "first_process_on_one_processor": "tried(lambda: os.sched_setaffinity(1, {0}), 'processors')\n",
    "first_process_last_in_line": "tried(lambda: os.setpriority(os.PRIO_PROCESS, 1, 19), 'priority')\n",
    "first_process_attributes": """
number("sched_setattr", 314, 1, struct.pack("IIQiIQQQ", 48, 5, 0, 0, 0, 0, 0, 0), 0)
""",
    "first_process_parameters": "tried(lambda: os.sched_setparam(1, os.sched_param(0)), 'parameters')\n",
    "first_process_limits": """
import resource
tried(lambda: resource.prlimit(1, resource.RLIMIT_NOFILE, (32, 32)), "limit")
""",
    "first_process_disk_priority": "number('ioprio_set', 251, 1, 1, 3 << 13)\n",
}
"""Ways to keep the sandbox's first process from doing anything."""

PATHS = {
    "mounts_listed": """
mounts = (ctypes.c_uint64 * 64)()
number("listmount", 458, struct.pack("IIQQ", 24, 0, 0xFFFFFFFFFFFFFFFF, 0), mounts, ctypes.c_long(64), 0)
""",
    "mount_roots": """
space = ctypes.create_string_buffer(256)
libc.syscall(332, -100, b"/opt", 0, 0x4000, space)
mount = struct.unpack_from("Q", space, 144)[0]
answer = ctypes.create_string_buffer(4096)
number("statmount", 457, struct.pack("IIQQ", 24, 0, mount, 8), answer, ctypes.c_long(4096), 0)
""",
    "mount_sources": """
space = ctypes.create_string_buffer(256)
libc.syscall(332, -100, b"/dev/null", 0, 0x4000, space)
mount = struct.unpack_from("Q", space, 144)[0]
answer = ctypes.create_string_buffer(4096)
number("statmount", 457, struct.pack("IIQQ", 24, 0, mount, 1 | 2 | 32), answer, ctypes.c_long(4096), 0)
""",
    "space_of_the_disk": "tried(lambda: os.statvfs(LIBRARY).f_bfree, 'free blocks')\n",
    "space_of_the_disk_by_descriptor": """
with open(LIBRARY, "rb") as stream:
    tried(lambda: os.statvfs(stream.fileno()).f_bfree, "free blocks")
""",
    "file_systems_known": "number('sysfs', 139, 3)\n",
    "load_and_memory_of_the_machine": """
facts = (ctypes.c_long * 64)()
number("sysinfo", 99, facts)
""",
}
"""What the machine around the sandbox looks like."""

COUNTED_PER_USER = {
    "inotify_instances": """
tried(lambda: [call("inotify_init1", 0)() for _ in range(4)], "instances")
number("inotify_init", 253)
""",
    "posix_timers": """
timers = [ctypes.c_int() for _ in range(32)]
tried(lambda: [call("syscall", 222, 1, None, ctypes.byref(timer))() for timer in timers], "timer_create")
""",
    "signals_pending": """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN})
for _ in range(500):
    os.kill(os.getpid(), signal.SIGRTMIN)
queued = 0
while signal.sigtimedwait({signal.SIGRTMIN}, 0):
    queued += 1
if queued > 100:
    print("ESCAPED", queued, "pending signals")
""",
    "signals_queued": """
import signal
facts = struct.pack("iii", signal.SIGCHLD, 0, -1) + bytes(116)
number("rt_sigqueueinfo", 129, os.getpid(), signal.SIGCHLD, facts)
""",
    "timers_as_files": "number('timerfd_create', 283, 1, 0)\n",
    "signals_as_files": "number('signalfd4', 289, -1, bytes(8), 8, 0)\n",
    "process_descriptors": "number('pidfd_open', 434, os.getpid(), 0)\n",
}
"""What the kernel counts for all processes of a user together."""

DISKS = {
    "fsync_of_a_pipe": """
inlet, outlet = os.pipe()
try:
    os.fsync(inlet)
except OSError as error:
    if error.errno == 22:
        print("ESCAPED fsync reaches the kernel")
for descriptor in (inlet, outlet):
    os.close(descriptor)
""",
} | {
    f"{name}_of_nothing": f"""
if libc.syscall({number}, *map(ctypes.c_long, {arguments})) and ctypes.get_errno() in (9, 22):
    print("ESCAPED {name} reaches the kernel")
"""
    for name, number, arguments in (
        ("fdatasync", 75, (-1,)),
        ("syncfs", 306, (-1,)),
        ("sync_file_range", 277, (-1, 0, 0, 0)),
        ("msync", 26, (1, 1, 4)),
    )
}
"""A call that looks at its arguments is carried out, and would write to the machine's disks."""

SMALL = MEMORY | SIGNALS | FIRST | PATHS | COUNTED_PER_USER | DISKS

ALONE = {
    "socket_memory": """
if HOST["level"] == "landlock":
    sys.exit("no processes")
import socket
for _ in range(HOST["max_processes"] - 2):
    if os.fork() == 0:
        break
held, pairs = 0, []
try:
    while True:
        pairs.append(socket.socketpair())
        for end in pairs[-1]:
            end.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    held += end.send(bytes(4096))
except OSError:
    pass
time.sleep(2)
print("ESCAPED", HOST["max_processes"] - 1, "times", held >> 20, "MiB in sockets")
""",
    "files_beside_a_starved_first_process": """
if HOST["level"] == "landlock":
    sys.exit("no files")
for way in (lambda: os.sched_setaffinity(1, {0}), lambda: os.setpriority(os.PRIO_PROCESS, 1, 19),
            lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))):
    with contextlib.suppress(OSError):
        way()
for _ in range(HOST["max_processes"] - 3):
    if os.fork() == 0:
        os.sched_setaffinity(0, {0})
        while True:
            pass
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
os.close(os.open("file", os.O_CREAT | os.O_WRONLY))
for number in range(60_000):
    os.link("file", f"file{number}")
print("ESCAPED", number, "files")
""",
}
"""Probes that are killed, or refused before."""
