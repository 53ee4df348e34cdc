"""Hostile programs for the sandbox, and the process that tries them: `python sandbox_probes.py '{"uid": …}'`.

A probe prints `ESCAPED` for each thing it got that it must not get, and `held` at its end, which shows that it ran to
its end and was not merely broken. The process plants what could be stolen, runs the probes, and prints one JSON line.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import sys
import tempfile
import time
from pathlib import Path

PR_SET_NAME = 15
ENDLESS_LIMIT_S = 1.5

_PRELUDE = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def tried(action, name):
    try:
        result = action()
    except (OSError, ValueError, MemoryError):
        return
    print("ESCAPED", name, repr(result)[:80])
def call(name, *arguments):
    def action():
        result = getattr(libc, name)(*arguments)
        if result == -1:
            raise OSError(ctypes.get_errno(), name)
        return result
    return action
"""
_NAMED = "libc.prctl(15, HOST['comm'].encode())\n"

ENDING = {
    "host_files": """
for path in (HOST["secret"], "/etc/passwd", "/etc/shadow", "/etc/hostname", HOST["checkout"] + "/pyproject.toml"):
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
for folder, _, _ in os.walk("/"):
    if folder != here and not folder.startswith(here + "/"):
        tried(lambda: open(os.path.join(folder, "x"), "w"), folder)
for path in ("/dev/shm/x", "/tmp/x", "/x", "/opt/guest.py", sys.executable, os.__file__):
    tried(lambda: open(path, "a"), path)
    tried(lambda: os.chmod(path, 0o777), path)
    tried(lambda: os.unlink(path), path)
open("inside", "w").write("x")
""",
    "fork_bomb": _NAMED
    + """
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
    "daemon_survives": _NAMED
    + """
if os.fork() == 0:
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
        tried(call("ptrace", 16, pid, 0, 0), f"ptrace of {pid}")
        tried(call("process_vm_readv", pid, 0, 0, 0, 0, 0), f"memory of {pid}")
tried(call("ptrace", 16, 1, 0, 0), "ptrace of the first process")
tried(lambda: os.listdir("/proc"), "/proc")
tried(lambda: os.listdir("/sys"), "/sys")
if os.getpid() > 1000 or os.getppid() > 1:
    print("ESCAPED process ids of the host", os.getpid(), os.getppid())
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
for name in os.listdir("/dev"):
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
    "leave_something": "open('left-behind', 'w').write('x')\n",
    "find_what_another_left": "tried(lambda: open('left-behind').read(), 'file of another program')\n",
}
"""Probes that end by themselves."""

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
if os.fork():
    os.wait()
os.setsid()
while True:
    time.sleep(1)
""",
    "output_closed": "for descriptor in range(3):\n    os.close(descriptor)\ntime.sleep(60)\n",
}
"""Probes that the time limit has to end."""

FLOODS = {
    "output_flood": "while True:\n    print('x' * 10000)\n",
    "error_flood": "while True:\n    sys.stderr.write('x' * 10000)\n",
}
"""Probes that the output limit has to end."""


def become(uid: int | None) -> None:
    """Drop root for good."""
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)


def survivors(comm: str) -> list[int]:
    """Ids of processes that carry the name."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "comm").read_text().strip() == comm:
                found.append(int(entry.name))
    return found


def descendants(pid: int) -> list[int]:
    """Ids of all processes below one."""
    children = []
    with contextlib.suppress(OSError):
        children = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return children + [below for child in children for below in descendants(child)]


async def try_probes(kind: str, names: list[str]) -> dict[str, object]:
    """Plant what could be stolen, run the probes, say how each ended."""
    from treadle.agent.sandbox.config import SandboxSettings
    from treadle.agent.tools.python import PythonTool

    settings = SandboxSettings(
        kind=kind,
        packages=(),
        memory_mb=256,
        scratch_mb=8,
        max_processes=16,
        max_output_mb=2,
        pool_size=2,
        max_running=4,
    )
    canary = "x" + secrets.token_hex(12)
    os.environ["TREADLE_CANARY"] = canary
    folder = Path(tempfile.mkdtemp(prefix="sandbox-probes-"))
    secret = folder / "secret"
    secret.write_text(canary)
    inherited = os.open(secret, os.O_RDONLY)
    os.set_inheritable(inherited, True)
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind("\0" + canary)
    abstract.listen()
    host = {
        "secret": str(secret),
        "canary": canary,
        "checkout": str(Path(__file__).resolve().parents[2]),
        "tcp_port": server.sockets[0].getsockname()[1],
        "abstract": canary,
        "pid": os.getpid(),
        "parent": os.getppid(),
    } | settings.model_dump(include={"max_processes", "memory_mb", "scratch_mb"})
    before = set(descendants(os.getpid()))
    outcomes: dict[str, object] = {}

    async with PythonTool(settings) as patient, PythonTool(settings, time_limit_s=ENDLESS_LIMIT_S) as hasty:

        async def attempt(name: str, body: str) -> None:
            comm = f"p{secrets.token_hex(6)}"
            # Without the one character, so that finding it in the environment proves something.
            facts = host | {"comm": comm, "canary": "?" + canary[1:]}
            program = f"HOST = {facts!r}\n{_PRELUDE}{body}\nprint('held')\n"
            tool = hasty if name in ENDLESS else patient
            began = time.monotonic()
            outcome = await tool.call(program, deadline=asyncio.get_running_loop().time() + 60)
            outcomes[name] = {
                "status": outcome.status,
                "text": outcome.text,
                "seconds": time.monotonic() - began,
                "program_seconds": outcome.seconds,
                "survivors": len(survivors(comm)),
            }

        await asyncio.gather(*(attempt(name, body) for name, body in ALL.items() if name in names))
    server.close()
    abstract.close()
    os.close(inherited)
    secret.unlink()
    folder.rmdir()
    return {"uid": os.geteuid(), "outcomes": outcomes, "left": sorted(set(descendants(os.getpid())) - before)}


async def hold() -> None:
    """Keep one program running and others warm; say which processes that takes, then wait to be killed."""
    from treadle.agent.sandbox.config import SandboxSettings
    from treadle.agent.sandbox.pool import SandboxPool

    comm = f"p{secrets.token_hex(6)}"
    async with SandboxPool(SandboxSettings(packages=(), pool_size=2)) as pool:
        body = f"import ctypes, os, time\nctypes.CDLL(None).prctl({PR_SET_NAME}, {comm.encode()!r})\nos.fork()\n"
        running = asyncio.create_task(pool.run(body + "time.sleep(60)", time_limit_s=60))
        while len(survivors(comm)) < 2:
            await asyncio.sleep(0.01)
        print(json.dumps({"pid": os.getpid(), "held": descendants(os.getpid())}), flush=True)
        await running


ALL = ENDING | ENDLESS | FLOODS


def main() -> None:
    """Read what to do from the command line, do it, print the outcome."""
    task = json.loads(sys.argv[1])
    become(task.get("uid"))
    if task.get("hold"):
        asyncio.run(hold())
    else:
        print(json.dumps(asyncio.run(try_probes(task.get("kind", "bubblewrap"), task.get("names") or list(ALL)))))


if __name__ == "__main__":
    main()
