"""Hostile programs for the sandbox, as text; `sandbox_probes` runs them.

A probe prints `ESCAPED` for each thing it got that it must not get, and `held` at its end, which shows that it ran to
its end and was not merely broken. `HOST` contains the targets that the host has planted; `HOST["level"]` is the
kind of isolation, since some actions must not even be tried without confinement.
"""

from __future__ import annotations

from support.sandbox.sandbox_small_programs import ALONE

PRELUDE = """
import contextlib, ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def tried(action, name):
    try:
        result = action()
    except (OSError, ValueError, MemoryError, RuntimeError):
        return
    print("ESCAPED", name, repr(result)[:80])
def fork():
    # A child, or none where processes cannot be made.
    try:
        return os.fork()
    except OSError:
        return 1
def call(name, *arguments):
    def action():
        result = getattr(libc, name)(*arguments)
        if result == -1:
            raise OSError(ctypes.get_errno(), name)
        return result
    return action
libc.prctl(15, HOST["comm"].encode())  # By this name the host finds it and what it leaves.
"""

BASIC = {
    "host_files": """
texts = ("/etc/passwd", "/etc/shadow", "/etc/hostname", HOST["checkout"] + "/pyproject.toml")
for path in (HOST["secret"], HOST["owned"], *texts):
    tried(lambda: open(path).read(), path)
for path in ("/root", "/home", "/etc", "/tmp", "/var", "/usr", "/run", HOST["checkout"]):
    tried(lambda: os.listdir(path), path)
""",
    "environment_secrets": """
for name, value in os.environ.items():
    if HOST["canary"][1:] in value or "TREADLE" in name:
        print("ESCAPED", name)
for pid in ("self", "1", str(HOST["pid"]), str(os.getppid())):
    tried(lambda: open(f"/proc/{pid}/environ").read(), pid)
""",
    "network_tcp": """
import socket
tried(lambda: socket.create_connection(("127.0.0.1", HOST["tcp_port"]), timeout=1), "loopback of the host")
tried(lambda: socket.create_connection(("1.1.1.1", 80), timeout=1), "the internet")
tried(lambda: socket.socket(socket.AF_INET6, socket.SOCK_STREAM), "IPv6 socket")
""",
    "network_udp_and_names": """
import socket
def send():
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", HOST["tcp_port"]))
tried(send, "datagram")
tried(lambda: socket.getaddrinfo("example.com", 80), "name lookup")
tried(lambda: socket.gethostbyname("example.com"), "name lookup")
""",
    "other_socket_families": """
import socket
for family in (16, 17, 38, 40, 31):  # netlink, packet, kernel crypto, vsock, bluetooth
    tried(lambda: socket.socket(family, socket.SOCK_RAW), f"family {family} raw")
    tried(lambda: socket.socket(family, socket.SOCK_STREAM), f"family {family}")
    tried(lambda: socket.socket(family, socket.SOCK_DGRAM), f"family {family} datagram")
""",
    "abstract_socket_of_the_host": """
import socket
tried(lambda: socket.socket(socket.AF_UNIX).connect(chr(0) + HOST["abstract"]), "abstract socket")
""",
    "write_outside_scratch": """
here = os.getcwd()
for folder, _, _ in os.walk("/") if HOST["level"] != "none" else ():
    if folder != here and not folder.startswith(here + "/"):
        tried(lambda: open(os.path.join(folder, "x"), "w"), folder)
elsewhere = ["/dev/shm/x", "/tmp/x", "/x", HOST["checkout"] + "/x", "/opt/guest.py", sys.executable, os.__file__]
for path in [HOST["folder"] + "/x"] + elsewhere * (HOST["level"] != "none"):
    tried(lambda: open(path, "a"), path)
    tried(lambda: os.chmod(path, 0o777), path)
    tried(lambda: os.unlink(path), path)
for make in (os.mkdir, os.mkfifo, lambda path: os.symlink("x", path)):
    tried(lambda: make(HOST["folder"] + "/made"), "made in a folder of the host")
if HOST["level"] != "landlock":
    open("inside", "w").write("x")
""",
    "fork_bomb": """
children = 0
try:
    while children < 200:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        children += 1
except OSError:
    pass
if children > HOST["max_processes"]:
    print("ESCAPED", children, "children")
""",
    "memory_bomb": """
blocks = []
try:
    while len(blocks) < 1024:
        blocks.append(bytearray(os.urandom(1)) * (1 << 20))
except MemoryError:
    pass
if len(blocks) > HOST["memory_mb"]:
    print("ESCAPED", len(blocks), "MiB")
blocks.clear()
""",
    "memory_beside_the_limit": """
tried(call("memfd_create", b"x", 0), "memfd")
tried(call("shmget", 0, 1 << 20, 0o1600), "System V segment")
tried(call("mlock", ctypes.create_string_buffer(1 << 20), 1 << 20), "locked memory")
""",
    "disk_fill": """
written = 0
try:
    for number in range(64):
        with open(f"file{number}", "wb", buffering=0) as stream:
            while written < 64 << 20:
                written += stream.write(bytes(1 << 20))
except OSError:
    pass
if written > HOST["scratch_mb"] << 20:
    print("ESCAPED", written, "bytes")
""",
    "descriptor_flood": """
held = []
try:
    while len(held) < 5000:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
if len(held) > 1024:
    print("ESCAPED", len(held), "descriptors")
for descriptor in held:
    os.close(descriptor)
""",
    "daemon_survives": """
if fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for descriptor in range(3):
            os.close(descriptor)
        time.sleep(60)
    os._exit(0)
""",
    "host_processes": """
import signal
for pid in (HOST["pid"], HOST["parent"]):
    if pid > 3:
        tried(lambda: os.kill(pid, 0), f"signal to {pid}")
        if HOST["level"] != "none":  # It would stop the very process that waits for this one.
            tried(call("ptrace", 16, pid, 0, 0), f"ptrace of {pid}")
        tried(call("process_vm_readv", pid, 0, 0, 0, 0, 0), f"memory of {pid}")
tried(call("ptrace", 16, 1, 0, 0), "ptrace of the first process")
tried(lambda: os.listdir("/proc"), "/proc")
tried(lambda: os.listdir("/sys"), "/sys")
""",
    "nested_namespaces": """
for flag in (0x10000000, 0x00020000, 0x20000000, 0x40000000, 0x10020000):
    tried(call("unshare", flag), f"unshare {flag:#x}")
    tried(call("syscall", 56, flag | 17, 0, 0, 0, 0), f"clone {flag:#x}")
tried(call("mount", b"none", b"/scratch", b"tmpfs", 0, None), "mount")
tried(call("umount2", b"/scratch", 2), "umount")
tried(call("chroot", b"/scratch"), "chroot")
tried(call("syscall", 0x40000000 | 39), "x32 system call")
""",
    "become_root": """
tried(lambda: os.setuid(0), "setuid 0")
tried(lambda: os.seteuid(0), "seteuid 0")
tried(lambda: os.setgroups([0]), "groups of root")
if 0 in (os.getuid(), os.geteuid(), os.getgid(), *os.getgroups()):
    print("ESCAPED root", os.getuid(), os.getgid(), os.getgroups())
capabilities = (ctypes.c_uint32 * 6)()
libc.capget((ctypes.c_uint32 * 2)(0x20080522, 0), capabilities)
if any(capabilities):
    print("ESCAPED capabilities", list(capabilities))
""",
    "devices": """
for name in os.listdir("/dev") if HOST["level"] == "bubblewrap" else ():
    if name not in ("null", "zero", "full", "random", "urandom"):
        print("ESCAPED device", name)
tried(lambda: os.open("/dev/tty", os.O_RDWR), "terminal")
tried(lambda: os.mknod("disk", 0o60666, os.makedev(254, 0)), "block device")
tried(lambda: os.mknod("memory", 0o20666, os.makedev(1, 1)), "memory device")
""",
    "inherited_descriptors": """
for descriptor in range(3, 4096):
    tried(lambda: os.fstat(descriptor), f"descriptor {descriptor}")
if os.read(0, 1):
    print("ESCAPED input")
""",
    "raise_limits": """
import resource
for name in ("AS", "NPROC", "FSIZE", "CPU", "NOFILE", "CORE"):
    number = getattr(resource, "RLIMIT_" + name)
    hard = resource.getrlimit(number)[1]
    if hard == resource.RLIM_INFINITY:
        print("ESCAPED no limit on", name)
    tried(lambda: resource.setrlimit(number, (hard + 1, hard + 1)), name)
""",
    "leave_something": """
if HOST["level"] == "landlock":
    tried(lambda: open("left-behind", "w"), "made a file")
else:
    open("left-behind", "w").write("x")
""",
    "find_what_another_left": "tried(lambda: open('left-behind').read(), 'file of another program')\n",
}
"""Probes that end by themselves; more of them are in `sandbox_kernel_programs`."""

ENDLESS = {
    "sleep": "time.sleep(60)\n",
    "signals_ignored": """
import signal
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
while True:
    time.sleep(1)
""",
    "children_ignore_signals": """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if HOST["level"] != "landlock":
    if os.fork():
        os.wait()
    os.setsid()
while True:
    time.sleep(1)
""",
    "busy_children": """
for _ in range(8):
    if fork() == 0:
        break
while True:
    pass
""",
    "stopped": "import signal\nos.kill(os.getpid(), signal.SIGSTOP)\ntime.sleep(60)\n",
    "exit_hook_hangs": "import atexit\natexit.register(time.sleep, 60)\n",
    "threads_that_stay": "import threading\nthreading.Thread(target=time.sleep, args=(60,)).start()\n",
    "output_closed": "for descriptor in range(3):\n    os.close(descriptor)\ntime.sleep(60)\n",
}
"""Probes that the time limit has to end."""

FLOODS = {
    "output_flood": "while True:\n    print('x' * 10000)\n",
    "error_flood": "while True:\n    sys.stderr.write('x' * 10000)\n",
}
"""Probes that the output limit has to end."""


FATAL = ALONE | {
    "memory_of_all_processes": """
if HOST["level"] == "landlock":
    sys.exit("no processes")
for _ in range(HOST["max_processes"] - 2):
    if os.fork() == 0:
        break
held = [os.urandom(1) * (1 << 20) for _ in range(HOST["memory_mb"] // 4)]
time.sleep(20)
print("ESCAPED", HOST["max_processes"] - 1, "times", len(held), "MiB")
""",
    "too_many_files": """
number = 0
try:
    while number < 100_000:
        os.close(os.open(f"file{number}", os.O_CREAT | os.O_WRONLY))
        number += 1
    print("ESCAPED", number, "files")
except OSError:
    sys.exit("no files")
""",
    "calls_of_32_bit": """
import mmap
page = mmap.mmap(-1, 4096, prot=7)
page.write(bytes.fromhex("b814000000cd80c3"))  # getpid by interrupt 0x80
print("ESCAPED", ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))())
""",
}
"""Probes that are killed, or refused before."""

HEAVY = (
    "memory_bomb",
    "disk_fill",
    "memory_of_all_processes",
    "files_beside_a_starved_first_process",
    "too_many_files",
)
"""Probes that take all the memory that a program may have."""

GLIMPSES = {
    "files_exist": "tried(lambda: os.stat(HOST['secret']), 'size and times of a file')\n",
    "host_name": "if os.uname().nodename == HOST['name']:\n    print('ESCAPED name of the host')\n",
    "process_ids": """
tried(lambda: os.stat(f"/proc/{HOST['pid']}"), "a process exists")
if os.getppid() > 1:
    print("ESCAPED process id", os.getppid())
""",
    "paths_of_the_host": "if not os.__file__.startswith('/opt/'):\n    print('ESCAPED', os.__file__)\n",
}
"""What the second level cannot hide, and bubblewrap does."""

ESCAPE_UNCONFINED = (
    *("host_files", "environment_secrets", "network_tcp", "network_udp_and_names", "other_socket_families"),
    *("abstract_socket_of_the_host", "write_outside_scratch", "host_processes", "proc_of_others"),
    *("unix_sockets_of_the_host", "datagrams_of_a_pair", "ptrace_and_memory_of_others", "namespaces_by_other_ways"),
    *("links", "ways_around_the_root", "change_files_of_the_host", "dangerous_system_calls", "keyrings", "sys_files"),
    *("watch_the_host", "signals_to_others", "signal_by_descriptor_owner", "limits_of_others", *GLIMPSES),
)
"""Probes that get something where nothing holds them, as an ordinary user; others would leave something behind."""

LEAVES = """
import builtins, contextlib, os, socket, sys, time
builtins.left = sys.left = "left"
os.environ["LEFT"] = "left"
for name in ("left", "/dev/shm/left", "/tmp/left", "/scratch/left", "/opt/left"):
    with contextlib.suppress(OSError):
        open(name, "w").write("left")
with contextlib.suppress(OSError):
    if os.fork() == 0:
        os.setsid()
        held = socket.socket(socket.AF_UNIX)
        held.bind(chr(0) + "left")
        held.listen()
        time.sleep(60)
with contextlib.suppress(OSError):
    os.nice(5)
print("done")
"""
"""A program that leaves what it can for the next one."""
FINDS = """
import builtins, os, socket, sys
found = [hasattr(builtins, "left"), hasattr(sys, "left"), "LEFT" in os.environ]
found += map(os.path.exists, ("left", "/dev/shm/left", "/tmp/left", "/scratch/left", "/opt/left"))
found += [os.listdir() != [], os.getpriority(os.PRIO_PROCESS, 0) != PRIORITY]
try:
    socket.socket(socket.AF_UNIX).connect(chr(0) + "left")
    found.append(True)
except OSError:
    pass
for pid in range(1, 20):
    try:
        os.kill(pid, 0)
        found.append(pid not in (1, os.getpid()))
    except OSError:
        pass
found
"""
"""The next one: what it found, one by one."""
