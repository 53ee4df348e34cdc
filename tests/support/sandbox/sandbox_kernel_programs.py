"""Hostile programs that attack the kernel, other processes, and the surroundings of the sandbox.

See `sandbox_programs` for how a probe reports its result.
"""

from __future__ import annotations

KERNEL = {
    "proc_of_others": """
for pid in ("1", "self", str(os.getppid()), str(HOST["pid"]), str(HOST["victim"])):
    for name in ("cmdline", "environ", "maps", "mem", "status", "stat", "fd", "task", "net/tcp"):
        tried(lambda: os.open(f"/proc/{pid}/{name}", os.O_RDONLY), f"/proc/{pid}/{name}")
for pid in ("1", str(os.getppid()), str(HOST["pid"]), str(HOST["victim"])):
    for name in ("exe", "cwd", "root", "ns/mnt"):
        tried(lambda: os.readlink(f"/proc/{pid}/{name}"), f"/proc/{pid}/{name}")
for name in ("kcore", "kallsyms", "cmdline", "cpuinfo", "meminfo", "mounts", "net/unix", "sys/kernel/core_pattern"):
    tried(lambda: open(f"/proc/{name}", "rb").read(1), f"/proc/{name}")
for name in ("sys/kernel/core_pattern", "sysrq-trigger", "self/oom_score_adj", "self/uid_map", "self/mem"):
    tried(lambda: os.open(f"/proc/{name}", os.O_WRONLY), f"write /proc/{name}")
""",
    "sys_files": """
for path in ("/sys", "/sys/class/net", "/sys/block", "/sys/kernel/mm", "/sys/fs/cgroup", "/sys/devices"):
    tried(lambda: os.listdir(path), path)
for path in ("/sys/kernel/notes", "/sys/class/net/lo/address", "/sys/power/state", "/sys/kernel/uevent_helper"):
    tried(lambda: os.open(path, os.O_RDONLY), path)
    tried(lambda: os.open(path, os.O_WRONLY), "write " + path)
tried(lambda: os.mkdir("/sys/fs/cgroup/escape"), "control group")
""",
    "unix_sockets_of_the_host": """
import socket
tried(lambda: socket.socket(socket.AF_UNIX).connect(HOST["unix"]), "stream socket")
tried(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).connect(HOST["datagram"]), "datagram socket")
tried(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"x", HOST["datagram"]), "datagram")
for path in ("/run/docker.sock", "/run/dbus/system_bus_socket", "/dev/log", "/run/systemd/notify"):
    tried(lambda: socket.socket(socket.AF_UNIX).connect(path), path)
    tried(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).connect(path), path)
""",
    "datagrams_of_a_pair": """
import socket
def send(way):
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    way(one)
tried(lambda: send(lambda pair: pair.sendto(b"x", HOST["datagram"])), "sendto")
tried(lambda: send(lambda pair: pair.sendmsg([b"x"], [], 0, HOST["datagram"])), "sendmsg")
tried(lambda: send(lambda pair: pair.connect(HOST["datagram"])), "connect")
tried(lambda: send(lambda pair: pair.sendto(b"x", chr(0) + HOST["abstract"])), "abstract")
""",
    "ptrace_and_memory_of_others": """
import signal
# Traced, it would stop at the news that the victim has stopped, where that comes late, and print nothing.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
for pid in (HOST["victim"], 1, os.getppid(), HOST["pid"])[: 1 if HOST["level"] == "none" else 4]:
    tried(call("ptrace", 16, pid, 0, 0), f"attach {pid}")
    tried(call("ptrace", 0x4206, pid, 0, 0), f"seize {pid}")
    tried(call("process_vm_readv", pid, 0, 0, 0, 0, 0), f"read {pid}")
    tried(call("process_vm_writev", pid, 0, 0, 0, 0, 0), f"write {pid}")
    tried(call("syscall", 438, libc.syscall(434, pid, 0), 0, 0), f"descriptor of {pid}")
    tried(call("syscall", 440, libc.syscall(434, pid, 0), 0, 0, 20, 0), f"advice for {pid}")
    tried(call("syscall", 312, pid, os.getpid(), 2, 0, 0), f"compare {pid}")
tried(call("ptrace", 0, 0, 0, 0), "to be traced")
""",
    "mounts": """
here = os.getcwd().encode()
for source, target, kind, flags in (
    (b"none", here, b"tmpfs", 0), (b"proc", here, b"proc", 0), (b"/", here, None, 0x1000), (None, b"/", None, 0x1020),
    (None, b"/dev", None, 0x1020), (None, b"/", None, 1 << 18), (b"none", here, b"overlay", 0),
):
    tried(call("mount", source, target, kind, flags, None), f"mount {source} {target} {flags:#x}")
for path in (here, b"/", b"/dev", b"/dev/null"):
    tried(call("umount2", path, 2), "umount")
tried(call("syscall", 155, here, here), "pivot_root")
tried(call("syscall", 161, here), "chroot")
tried(call("syscall", 428, -100, b"/", 1), "open_tree")
tried(call("syscall", 430, b"tmpfs", 0), "fsopen")
tried(call("syscall", 433, -100, b"/", 0), "fspick")
tried(call("syscall", 442, -100, b"/", 0, bytes(32), 32), "mount_setattr")
""",
    "namespaces_by_other_ways": """
import struct
for flag in (0x10000000, 0x00020000, 0x04000000, 0x02000000):
    tried(call("syscall", 435, struct.pack("=11Q", flag, 0, 0, 0, 17, *[0] * 6), 88), f"clone3 {flag:#x}")
    tried(call("syscall", 56, flag | 0x10000 | 0x800 | 0x100, 0, 0, 0, 0), f"clone of a thread {flag:#x}")
for pid in (1, os.getppid(), HOST["pid"]):
    tried(call("setns", libc.syscall(434, pid, 0), 0x20000000), f"namespace of {pid}")
    for name in ("mnt", "net", "user"):
        tried(lambda: os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY), f"{name} of {pid}")
""",
    "setuid_programs": """
import subprocess
for path in ("/bin/su", "/usr/bin/passwd", "/bin/mount", "/usr/bin/sudo", "/usr/bin/newuidmap"):
    tried(lambda: subprocess.run([path, "--version"], capture_output=True, stdin=subprocess.DEVNULL), path)
def become():
    with open("program", "w") as stream:
        stream.write("x")
    os.chown("program", 0, 0)
tried(become, "file of root")
tried(call("syscall", 105, 0), "setuid")
tried(call("syscall", 117, 0, 0, 0), "setresuid")
tried(call("capset", (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(*[0xFFFFFFFF] * 3)), "capset")
""",
    "links": """
targets = [HOST["secret"], HOST["owned"], "/etc/passwd", "/proc/self/environ"]
for number, target in enumerate(targets):
    tried(lambda: (os.symlink(target, f"soft{number}"), open(f"soft{number}").read()), "symbolic link to " + target)
    tried(lambda: os.link(target, f"hard{number}"), "hard link to " + target)
    tried(lambda: os.rename(target, f"moved{number}"), "moved " + target)
    tried(lambda: os.link(target, HOST["folder"] + f"/hard{number}"), "hard link beside " + target)
if HOST["level"] != "none":
    tried(lambda: os.link(sys.executable, "hard"), "hard link to the interpreter")
    tried(lambda: os.rename(os.__file__, "moved"), "moved the library")
""",
    "ways_around_the_root": """
up = "../" * 20
for path in (up + "etc/passwd", "/proc/self/root/etc/passwd", "/proc/1/root/etc/passwd", up + HOST["secret"][1:]):
    tried(lambda: open(path).read(), path)
def below(folder):
    top = os.open(folder, os.O_PATH)
    return os.open("etc/passwd", os.O_RDONLY, dir_fd=top)
tried(lambda: below("/"), "openat")
tried(call("syscall", 437, -100, b"/etc/passwd", bytes(24), 24), "openat2")
tried(call("syscall", 303, -100, b"/", bytes([128]) + bytes(140), bytes(8), 0), "name_to_handle_at")
tried(call("syscall", 304, -100, bytes(64), 0), "open_by_handle_at")
""",
    "change_files_of_the_host": """
def change_times(path):
    os.utime(path, (0, 0))
    if os.stat(path).st_mtime_ns:
        raise OSError("nothing was done")
ways = {
    "chmod": lambda path: os.chmod(path, 0o600), "utime": change_times,
    "truncate": lambda path: os.truncate(path, 0), "attribute": lambda path: os.setxattr(path, "user.x", b"x"),
    "emptied": lambda path: os.open(path, os.O_RDONLY | os.O_TRUNC),
    "append": lambda path: os.open(path, os.O_APPEND | os.O_WRONLY),
    "owner": lambda path: os.chown(path, os.getuid(), -1), "unlink": os.unlink,
    "by descriptor": lambda path: os.fchmod(os.open(path, os.O_RDONLY), 0o600),
}
for path in [HOST["owned"], HOST["folder"]] + [os.__file__, "/dev/null"] * (HOST["level"] != "none"):
    for name, way in ways.items():
        if path != "/dev/null" or name not in ("append", "emptied"):
            tried(lambda: way(path), f"{name} {path}")
""",
    "shared_memory": """
tried(lambda: os.listdir("/dev/shm"), "/dev/shm")
tried(lambda: os.open("/dev/shm/x", os.O_CREAT | os.O_RDWR), "file in /dev/shm")
from multiprocessing import shared_memory
tried(lambda: shared_memory.SharedMemory(create=True, size=1 << 20).unlink(), "POSIX segment")
tried(call("shmget", 0x1234, 1 << 20, 0o1666), "System V segment")
tried(call("semget", 0x1234, 1, 0o1666), "System V semaphore")
tried(call("msgget", 0x1234, 0o1666), "System V queue")
tried(call("syscall", 240, b"x", 0o102, 0o600, 0), "POSIX queue")
tried(call("syscall", 447, 0), "secret memory")
if HOST["level"] == "landlock":
    tried(call("shmctl", 0, 13, ctypes.create_string_buffer(256)), "statistics of System V segments")
""",
    "dangerous_system_calls": """
for name, number, *arguments in (
    ("io_uring", 425, 1, bytes(120)), ("userfaultfd", 323, 1), ("perf_event_open", 298, bytes(112), 0, -1, -1, 0),
    ("bpf", 321, 0, bytes(128), 128), ("fanotify", 300, 0x200, 0), ("kexec_load", 246, 0, 0, 0, 0),
    ("init_module", 175, b"x", 1, b""), ("finit_module", 313, 0, b"", 0), ("swapon", 167, b"/dev/null", 0),
    ("acct", 163, 0), ("quotactl", 179, 0, 0, 0, 0), ("iopl", 172, 3), ("ioperm", 173, 0, 1, 1),
    ("personality", 135, 0xFFFFFFFF), ("modify_ldt", 154, 0, bytes(16), 16), ("syslog", 103, 10, 0, 0),
    ("lookup_dcookie", 212, 0, 0, 0), ("vhangup", 153),
):
    tried(call("syscall", number, *arguments), name)
""",
    "keyrings": """
tried(call("syscall", 250, 0, -3, 1), "session keyring")
tried(call("syscall", 248, b"user", b"left-behind", b"x", 1, -2), "key")
tried(call("syscall", 249, b"user", b"left-behind", 0, 0), "asked for a key")
""",
    "watch_the_host": """
watch = libc.inotify_init()
for path in ("/etc", "/tmp", "/var/log", HOST["folder"], HOST["checkout"]):
    tried(call("inotify_add_watch", watch, path.encode(), 2), path)
""",
    "terminal_injection": """
import fcntl, termios
for descriptor in (0, 1, 2):
    tried(lambda: fcntl.ioctl(descriptor, termios.TIOCSTI, b"x"), f"typed into {descriptor}")
    tried(lambda: os.ttyname(descriptor), f"terminal {descriptor}")
for path in ("/dev/tty", "/dev/console", "/dev/ptmx", "/dev/pts/0", "/dev/tty0"):
    tried(lambda: os.open(path, os.O_RDWR), path)
""",
    "clock_and_name_of_the_host": """
tried(lambda: time.clock_settime(time.CLOCK_REALTIME, time.time()), "clock")
tried(call("settimeofday", bytes(16), None), "time of day")
tried(call("adjtimex", ctypes.create_string_buffer(512)), "adjtimex")
tried(lambda: __import__("socket").sethostname("x"), "host name")
tried(call("syscall", 171, b"x", 1), "domain name")
""",
    "signals_to_others": """
import signal
for pid in (HOST["victim"], -HOST["victim"]):
    for number in (0, signal.SIGTERM, signal.SIGKILL):
        tried(lambda: os.kill(pid, number), f"signal {number} to {pid}")
        tried(call("syscall", 234, abs(pid), abs(pid), int(number)), f"tgkill {number} to {pid}")
        tried(call("syscall", 200, abs(pid), int(number)), f"tkill {number} to {pid}")
        tried(call("syscall", 129, abs(pid), int(number), bytes(128)), f"queued {number} to {pid}")
        tried(call("syscall", 424, libc.syscall(434, abs(pid), 0), int(number), 0, 0), f"by descriptor {number}")
if HOST["level"] == "landlock":
    for pid in (os.getppid(), 0, -1):
        tried(lambda: os.kill(pid, signal.SIGCONT), f"signal to {pid}")
if HOST["level"] == "bubblewrap":
    for pid in (os.getppid(), -1):
        for number in (signal.SIGTERM, signal.SIGSTOP, signal.SIGKILL):
            with contextlib.suppress(OSError):
                os.kill(pid, number)
""",
    "signal_by_descriptor_owner": """
import fcntl
inlet, outlet = os.pipe()
def own(descriptor):
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, HOST["victim"])
    fcntl.fcntl(descriptor, 10, 9)  # F_SETSIG
    fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_ASYNC)
    os.write(outlet, b"x")
tried(lambda: own(inlet), "F_SETOWN")
tried(lambda: fcntl.ioctl(inlet, 0x8901, HOST["victim"].to_bytes(4, "little")), "FIOSETOWN")
tried(lambda: fcntl.fcntl(inlet, 15, (HOST["victim"] << 32 | 1).to_bytes(8, "little")), "F_SETOWN_EX")
""",
    "limits_of_others": """
import resource
pid = HOST["victim"]
tried(lambda: resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0)), "limit")
tried(lambda: os.sched_setaffinity(pid, {0}), "processors")
tried(lambda: os.setpriority(os.PRIO_PROCESS, pid, 19), "priority")
tried(lambda: os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0)), "scheduler")
tried(call("syscall", 251, 1, pid, 3 << 13), "priority of input and output")
if HOST["level"] == "landlock":
    tried(lambda: os.setpriority(os.PRIO_USER, 0, 19), "priority of the user")
""",
    "swarm_of_orphans": """
for _ in range(HOST["max_processes"]):
    if fork() == 0:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
            if os.fork():
                os._exit(0)
            os.setsid()
        for number in range(3):
            os.close(number)
        time.sleep(60)
        os._exit(0)
for number in (57, 58):
    if HOST["level"] == "landlock":
        tried(call("syscall", number), "a process")
""",
    "child_keeps_output_open": """
if fork() == 0:
    time.sleep(60)
""",
    "thread_bomb": """
import _thread
held, started = _thread.allocate_lock(), 0
held.acquire()
_thread.stack_size(65536)
# Thread.start() would wait forever for a thread that ran out of memory before it began.
try:
    while started < 4096:
        _thread.start_new_thread(held.acquire, ())
        started += 1
except (RuntimeError, OSError, MemoryError):
    pass
if started > HOST["max_threads"]:
    print("ESCAPED", started, "threads")
""",
    "pipe_memory": """
import fcntl, socket
total, held = 0, []
try:
    while True:
        inlet, outlet = os.pipe()
        held.append((inlet, outlet))
        with contextlib.suppress(OSError):
            fcntl.fcntl(outlet, 1031, 1 << 20)
        os.set_blocking(outlet, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                total += os.write(outlet, bytes(65536))
except OSError:
    pass
for pair in held:
    for descriptor in pair:
        os.close(descriptor)
if total > 64 << 20:
    print("ESCAPED", total, "bytes in pipes")
""",
}
"""Probes that end by themselves."""
