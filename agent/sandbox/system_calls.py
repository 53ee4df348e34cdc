"""The system calls that programs in the sandbox may make, each with its reason; all others are refused.

`seccomp` compiles these tables for the kernel; `docs/reference/system-calls.md` shows them. A call is listed if the
interpreter, the C library, numpy, sympy or a module of the standard library needs it, and if it only affects things
inside the sandbox. Numbers are those of x86-64 (Linux `arch/x86/entry/syscalls/syscall_64.tbl`).

The first level is bubblewrap with namespaces; the second level is Landlock, for machines that refuse namespaces.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

OWN_PROCESS = 0xFFFFFFF0
"""Placeholder in the second level's filter for the id of the process that loads it; no process has this id."""

NAMESPACE_FLAGS = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
_CLONE_THREAD = 0x10000
_MAP_SHARED, _MAP_ANONYMOUS, _MAP_HUGETLB = 0x1, 0x20, 0x40000
_AF_UNIX, _SOL_SOCKET = 1, 1
_O_ACCMODE, _O_TRUNC = 0o3, 0o1000
_NOT_SOCK_STREAM = 0xE
_S_IFMT, _S_IFIFO = 0o170000, 0o010000


# fmt: off
REFUSED_TO_SERVERS = {
    "acct": 163, "add_key": 248, "adjtimex": 159, "bpf": 321, "chroot": 161, "clock_adjtime": 305, "clock_settime": 227,
    "create_module": 174, "delete_module": 176, "fanotify_init": 300, "finit_module": 313, "fsconfig": 431,
    "fsmount": 432, "fsopen": 430, "fspick": 433, "init_module": 175, "io_uring_enter": 426, "io_uring_register": 427,
    "io_uring_setup": 425, "ioperm": 173, "iopl": 172, "kcmp": 312, "kexec_file_load": 320, "kexec_load": 246,
    "keyctl": 250, "lookup_dcookie": 212, "memfd_secret": 447, "mount": 165, "mount_setattr": 442, "move_mount": 429,
    "name_to_handle_at": 303, "open_by_handle_at": 304, "open_tree": 428, "perf_event_open": 298, "personality": 135,
    "pidfd_getfd": 438, "pivot_root": 155, "process_madvise": 440, "process_vm_readv": 310, "process_vm_writev": 311,
    "ptrace": 101, "quotactl": 179, "quotactl_fd": 443, "reboot": 169, "request_key": 249, "setdomainname": 171,
    "sethostname": 170, "setns": 308, "settimeofday": 164, "swapoff": 168, "swapon": 167, "syslog": 103, "umount2": 166,
    "unshare": 272, "userfaultfd": 323, "vhangup": 153,
}
"""Calls that servers of users may not make: those that containers refuse by default, too."""
# fmt: on


@dataclass(frozen=True, slots=True)
class Test:
    """Test of one argument: its low 32 bits, masked, must equal one of the values."""

    argument: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Condition:
    """Condition on a call's arguments, in words and as tests; if one test fails, the call fails with `errno`."""

    text: str
    tests: tuple[Test, ...]
    errno: int = errno.EPERM


@dataclass(frozen=True, slots=True)
class Calls:
    """System calls (name -> number) that are allowed for the same reason and under the same condition."""

    numbers: dict[str, int]
    reason: str
    condition: Condition | None = None


ALLOWED = (
    Calls(
        {"read": 0, "write": 1, "close": 3, "lseek": 8, "pread64": 17, "pwrite64": 18, "readv": 19, "writev": 20,
         "preadv": 295, "pwritev": 296, "copy_file_range": 326, "close_range": 436},
        "read, write, copy and close open files",
    ),
    Calls(
        {"mmap": 9},
        "memory and shared libraries; shared memory needs a file, whose size counts in the scratch directory",
        Condition(
            "not both shared and anonymous, no huge pages",
            (Test(3, (0, _MAP_SHARED, _MAP_ANONYMOUS), _MAP_SHARED | _MAP_ANONYMOUS | _MAP_HUGETLB),),
            errno.ENOMEM,
        ),
    ),
    Calls({"mprotect": 10, "munmap": 11, "brk": 12, "mremap": 25}, "memory, limited by RLIMIT_AS"),
    Calls(
        {"madvise": 28},
        "allocators return memory to the kernel",
        Condition(
            "NORMAL, RANDOM, SEQUENTIAL, DONTNEED, FREE, (NO)HUGEPAGE, (DONT/DO)FORK, (DONT/DO)DUMP, (WIPE/KEEP)ONFORK",
            (Test(2, (0, 1, 2, 4, 8, 10, 11, 14, 15, 16, 17, 18, 19)),),
        ),
    ),
    Calls(
        {"futex": 202, "set_robust_list": 273, "rseq": 334, "set_tid_address": 218, "arch_prctl": 158,
         "sched_yield": 24, "sched_getaffinity": 204, "sched_get_priority_max": 146, "sched_get_priority_min": 147,
         "restart_syscall": 219},
        "threads and their locks",
    ),
    Calls(
        {"open": 2, "openat": 257, "creat": 85, "access": 21, "faccessat": 269, "faccessat2": 439, "stat": 4,
         "lstat": 6, "fstat": 5, "newfstatat": 262, "statx": 332, "readlink": 89, "readlinkat": 267,
         "getdents64": 217, "getcwd": 79, "chdir": 80, "fchdir": 81},
        "find and open files; the mounts limit which files exist",
    ),
    Calls(
        {"rename": 82, "renameat": 264, "renameat2": 316, "mkdir": 83, "mkdirat": 258, "rmdir": 84, "link": 86,
         "linkat": 265, "symlink": 88, "symlinkat": 266, "unlink": 87, "unlinkat": 263, "chmod": 90, "fchmod": 91,
         "fchmodat": 268, "umask": 95, "truncate": 76, "ftruncate": 77, "fallocate": 285},
        "change files in the scratch directory; all others are read-only",
    ),
    Calls(
        {"mknodat": 259},
        "named pipes in the scratch directory",
        Condition("FIFOs only", (Test(2, (_S_IFIFO,), _S_IFMT),)),
    ),
    Calls(
        {"dup": 32, "dup2": 33, "dup3": 292, "pipe": 22, "pipe2": 293, "poll": 7, "ppoll": 271, "select": 23,
         "pselect6": 270, "epoll_create": 213, "epoll_create1": 291, "epoll_ctl": 233, "epoll_wait": 232,
         "epoll_pwait": 281, "eventfd2": 290},
        "pipes and event loops (subprocess, asyncio)",
    ),
    Calls(
        {"fcntl": 72},
        "descriptors for subprocess and pipes",
        Condition(
            "F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_GETLK, F_OFD_GETLK, F_GETPIPE_SZ",
            (Test(1, (0, 1, 2, 3, 4, 5, 36, 1030, 1032)),),
        ),
    ),
    Calls(
        {"ioctl": 16},
        "query terminals and the number of readable bytes; set non-blocking and close-on-exec",
        Condition(
            "TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIOCLEX, FIONCLEX",
            (Test(1, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)),),
            errno.ENOTTY,
        ),
    ),
    Calls(
        {"socket": 41, "socketpair": 53},
        "sockets between processes of the sandbox",
        Condition("AF_UNIX", (Test(0, (_AF_UNIX,)),), errno.EACCES),
    ),
    Calls(
        {"connect": 42, "accept": 43, "accept4": 288, "bind": 49, "listen": 50, "shutdown": 48, "sendto": 44,
         "sendmsg": 46, "recvfrom": 45, "recvmsg": 47, "getsockname": 51, "getpeername": 52, "getsockopt": 55},
        "use those sockets; the network namespace contains no others",
    ),
    Calls(
        {"setsockopt": 54},
        "socket options, except buffer sizes: the limit on descriptors thereby limits the memory of buffers",
        Condition(
            "SOL_SOCKET: REUSEADDR, KEEPALIVE, LINGER, REUSEPORT, PASSCRED, RCVTIMEO, SNDTIMEO",
            (Test(1, (_SOL_SOCKET,)), Test(2, (2, 9, 13, 15, 16, 20, 21, 66, 67))),
        ),
    ),
    Calls(
        {"clone": 56},
        "threads and processes, limited by RLIMIT_NPROC",
        Condition("no new namespace", (Test(0, (0,), NAMESPACE_FLAGS),)),
    ),
    Calls(
        {"fork": 57, "vfork": 58, "execve": 59, "wait4": 61, "waitid": 247, "setsid": 112, "setpgid": 109},
        "processes of the program (subprocess, multiprocessing)",
    ),
    Calls({"exit": 60, "exit_group": 231}, "end a thread or the process"),
    Calls(
        {"kill": 62, "tgkill": 234},
        "signals to the sandbox's processes; it cannot see others",
    ),
    Calls(
        {"rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "rt_sigpending": 127, "rt_sigtimedwait": 128,
         "rt_sigsuspend": 130, "sigaltstack": 131, "pause": 34, "alarm": 37, "setitimer": 38, "getitimer": 36},
        "handle signals and set alarms (at most three timers per process)",
    ),
    Calls(
        {"getpid": 39, "gettid": 186, "getppid": 110, "getpgid": 121, "getpgrp": 111, "getsid": 124, "getuid": 102,
         "geteuid": 107, "getgid": 104, "getegid": 108, "getgroups": 115, "getresuid": 118, "getresgid": 120,
         "capget": 125, "getpriority": 140, "uname": 63, "getrandom": 318},
        "ids of the process, system information, random numbers",
    ),
    Calls(
        {"setgroups": 116, "setresuid": 117, "setresgid": 119, "capset": 126},
        "the sandbox drops root before the program starts; the program lacks the privileges to use them",
    ),
    Calls(
        {"nanosleep": 35, "clock_nanosleep": 230, "gettimeofday": 96, "time": 201, "clock_gettime": 228,
         "clock_getres": 229, "times": 100, "getrusage": 98},
        "clocks and sleeping",
    ),
    Calls({"getrlimit": 97, "setrlimit": 160}, "resource limits; the program can only lower them"),
    Calls(
        {"prlimit64": 302, "sched_setaffinity": 203, "sched_getscheduler": 145, "sched_getparam": 143},
        "resource limits, CPU affinity and scheduling",
        Condition("of the calling process", (Test(0, (OWN_PROCESS, 0)),)),
    ),
    Calls(
        {"setpriority": 141},
        "priority; the program can only lower it",
        Condition("of the calling process", (Test(0, (0,)), Test(1, (0,)))),
    ),
    Calls(
        {"prctl": 157},
        "name threads, drop privileges",
        Condition(
            "SET_NAME, GET_NAME, SET_PDEATHSIG, GET_PDEATHSIG, GET_DUMPABLE, CAPBSET_READ, (GET/SET)_NO_NEW_PRIVS",
            (Test(0, (15, 16, 1, 2, 3, 23, 38, 39)),),
        ),
    ),
    Calls(
        {"preadv2": 327, "pwritev2": 328},
        "like preadv and pwritev",
        Condition("no flags (RWF_NOWAIT shows what is in the page cache)", (Test(5, (0,)),), errno.EOPNOTSUPP),
    ),
)  # fmt: skip
"""Allowed at both levels, unless `WITHOUT_NAMESPACES` or `REFUSED_WITHOUT_NAMESPACES` lists the call."""

PRETENDED = (
    Calls(
        {"fsync": 74, "fdatasync": 75, "sync": 162, "syncfs": 306, "sync_file_range": 277, "msync": 26},
        "all writable files are in memory, and programs must not slow down the machine's disks",
    ),
    Calls({"fadvise64": 221}, "programs of different sandboxes could communicate through the page cache"),
    Calls(
        {"madvise": 28},
        "like fadvise64: reading ahead fills the page cache",
        Condition("WILLNEED", (Test(2, (3,)),)),
    ),
)
"""Return success without doing anything."""

_UNCHANGED = 0xFFFFFFFF
_SET_LOCKS, _GET_LOCKS = (6, 7, 37, 38), (5, 36)
ON_OWN_FILES = (
    Calls(
        {"utime": 132, "utimes": 235, "futimesat": 261, "utimensat": 280},
        "programs of different sandboxes could communicate through the times of shared files",
    ),
    Calls(
        {"chown": 92, "fchown": 93, "lchown": 94},
        "like utime: it changes the ctime",
        Condition("owner and group unchanged", (Test(1, (_UNCHANGED,)), Test(2, (_UNCHANGED,)))),
    ),
    Calls(
        {"fchownat": 260},
        "like utime: it changes the ctime",
        Condition("owner and group unchanged", (Test(2, (_UNCHANGED,)), Test(3, (_UNCHANGED,)))),
    ),
    Calls(
        {"fcntl": 72},
        "programs could communicate through locks on shared files; write locks need a file open for writing",
        Condition("F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW", (Test(1, _SET_LOCKS),)),
    ),
)
"""Allowed if no other sandbox sees the files and device nodes that this one can write; otherwise they return success
without doing anything."""

PRETENDED_ON_OWN_FILES = (
    Calls(
        {"fcntl": 72},
        "would reveal other sandboxes' read locks on libraries; the answer is that another process holds the lock",
        Condition("F_GETLK, F_OFD_GETLK", (Test(1, _GET_LOCKS),)),
    ),
)
PRETENDED_ON_SHARED_FILES = (
    Calls({"flock": 73}, "also locks read-only files, so programs could communicate through locks on libraries"),
)

ANSWERED = {
    errno.EOPNOTSUPP: {"setxattr": 188, "lsetxattr": 189, "fsetxattr": 190, "getxattr": 191, "lgetxattr": 192,
                       "fgetxattr": 193, "listxattr": 194, "llistxattr": 195, "flistxattr": 196},
    # Its flags are in memory, which a filter cannot read; glibc falls back to clone.
    errno.ENOSYS: {"clone3": 435},
}  # fmt: skip
"""Refused with an error for which `shutil` and the C library have a fallback."""

ANSWERED_ON_OWN_FILES = {errno.ENOLCK: {"flock": 73}}
"""Refused: a pretended lock would give programs wrong results. `guest` emulates Python's `fcntl.flock`."""

NEWER_THAN = 334
"""Refused calls with a greater number fail with ENOSYS, as on an older kernel; all others fail with EPERM."""

WITHOUT_NAMESPACES = (
    Calls(
        {"kill": 62, "tgkill": 234},
        "other processes of the machine are visible",
        Condition("only to itself", (Test(0, (OWN_PROCESS,)),)),
    ),
    Calls(
        {"clone": 56},
        "no further processes",
        Condition("threads, no new namespace", (Test(0, (_CLONE_THREAD,), NAMESPACE_FLAGS | _CLONE_THREAD),)),
    ),
    Calls(
        {"socketpair": 53},
        "a datagram socket can send to any address, even if it belongs to a pair",
        Condition("AF_UNIX, SOCK_STREAM", (Test(0, (_AF_UNIX,)), Test(1, (0,), _NOT_SOCK_STREAM)), errno.EACCES),
    ),
    Calls(
        {"open": 2},
        "Landlock of old kernels does not keep O_TRUNC from emptying a file opened for reading",
        Condition("not O_RDONLY with O_TRUNC", (Test(1, (0, 1, 2, 3, 0o1001, 0o1002, 0o1003), _O_ACCMODE | _O_TRUNC),),
                  errno.EACCES),
    ),
    Calls(
        {"openat": 257},
        "like open",
        Condition("not O_RDONLY with O_TRUNC", (Test(2, (0, 1, 2, 3, 0o1001, 0o1002, 0o1003), _O_ACCMODE | _O_TRUNC),),
                  errno.EACCES),
    ),
)  # fmt: skip
"""Stricter conditions of the second level, which replace those above."""

REFUSED_WITHOUT_NAMESPACES = (
    *("fork", "vfork", "execve", "setsid", "setpgid"),
    *("socket", "connect", "bind", "listen"),
    *("chmod", "fchmod", "fchmodat", "truncate", "mknodat"),
    *("setgroups", "setresuid", "setresgid", "capset", "setpriority"),
)
"""Refused at the second level: further processes, sockets with an address, changes of files and of user ids."""


def allowed(*, namespaces: bool) -> dict[str, tuple[int, Condition | None]]:
    """Return number and condition of each call that a level allows, by name."""
    found = {name: (number, calls.condition) for calls in ALLOWED for name, number in calls.numbers.items()}
    if not namespaces:
        found = {name: rule for name, rule in found.items() if name not in REFUSED_WITHOUT_NAMESPACES}
        found |= {
            name: (number, calls.condition) for calls in WITHOUT_NAMESPACES for name, number in calls.numbers.items()
        }
    return found


def pretended(*, own_files: bool) -> tuple[Calls, ...]:
    """Return the calls that return success without doing anything; for `own_files` see `seccomp.filter_program`."""
    on_files = PRETENDED_ON_OWN_FILES if own_files else (*ON_OWN_FILES, *PRETENDED_ON_SHARED_FILES)
    return (*PRETENDED, *on_files)


def table() -> str:
    """Return the Markdown table of all calls that do not fail, for the documentation."""
    rows = ["| calls | allowed when | reason | second level |", "| --- | --- | --- | --- |"]
    for calls in ALLOWED:
        condition = calls.condition.text if calls.condition is not None else "always"
        rows.append(f"| {_names(calls)} | {condition} | {calls.reason} | {_second_level(calls)} |")
    nothing = "returns success, does nothing"
    rows += [_pretended(calls, nothing, "the same") for calls in PRETENDED]
    rows += [_pretended(calls, f"own device nodes; if shared, {nothing}", nothing) for calls in ON_OWN_FILES]
    rows += [_pretended(calls, f"own device nodes: {nothing}", "allowed") for calls in PRETENDED_ON_OWN_FILES]
    for calls in PRETENDED_ON_SHARED_FILES:
        rows.append(_pretended(calls, f"shared device nodes: {nothing}; own: ENOLCK", nothing))
    return "\n".join(rows) + "\n"


def _pretended(calls: Calls, answer: str, second_level: str) -> str:
    which = f": {calls.condition.text}" if calls.condition is not None else ""
    return f"| {_names(calls)} | {answer}{which} | {calls.reason} | {second_level} |"


def _names(calls: Calls) -> str:
    return ", ".join(f"`{name}`" for name in calls.numbers)


def _second_level(calls: Calls) -> str:
    refused = [name for name in calls.numbers if name in REFUSED_WITHOUT_NAMESPACES]
    if len(refused) == len(calls.numbers):
        return "refused"
    notes = [f"not {', '.join(f'`{name}`' for name in refused)}"] if refused else []
    for stricter in WITHOUT_NAMESPACES:
        if (names := [name for name in stricter.numbers if name in calls.numbers]) and stricter.condition is not None:
            notes.append(f"{', '.join(f'`{name}`' for name in names)}: {stricter.condition.text} ({stricter.reason})")
    return "; ".join(notes) or "the same"
