"""The system-call filters of the sandbox, as BPF programs for the kernel.

Behind namespaces the filter closes what they leave open (new user namespaces for a program that was started by root,
sockets that no network namespace covers such as AF_VSOCK, memory that no resource limit counts such as memfd and
System V segments) and takes large, rarely needed parts of the kernel out of reach. Without namespaces the stricter
one also stops what would reach the machine's other processes and files where Landlock has no say: signals, limits and
priorities of others, further processes, every socket with an address, permissions and times of files.
A third one, for a process that has all it needs and only computes, names what is allowed; all else is refused.
Format: Linux `struct seccomp_data` and classic BPF (Documentation/userspace-api/seccomp_filter.rst).
"""

from __future__ import annotations

import errno
import platform
import struct

from treadle.core.errors import SandboxError

_AUDIT_ARCH_X86_64 = 0xC000003E
_X32_BIT = 0x40000000
_NUMBER, _ARCH, _ARGUMENT_0, _ARGUMENT_1, _ARGUMENT_2 = 0, 4, 16, 24, 32
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NAMESPACE_FLAGS = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
_AF_UNIX = 1
_CLONE, _CLONE3, _SOCKET, _SOCKETPAIR, _OPEN, _OPENAT, _OPENAT2 = 56, 435, 41, 53, 2, 257, 437
_CLONE_THREAD, _NOT_SOCK_STREAM, _O_ACCMODE, _O_TRUNC = 0x10000, 0xE, 0o3, 0o1000
OWN_PROCESS = 0xFFFFFFF0
"""Stands in the strict filter for the id of the process that loads it; no process has this one."""

_REFUSED = {
    # other processes
    "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "pidfd_getfd": 438,
    # mounts and namespaces
    "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "mount_setattr": 442, "unshare": 272, "setns": 308,
    "name_to_handle_at": 303, "open_by_handle_at": 304,
    # memory that resource limits do not count
    "memfd_create": 319, "memfd_secret": 447, "shmget": 29, "semget": 64, "msgget": 68, "mq_open": 240,
    # kernel interfaces with a history of defects
    "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "io_uring_setup": 425, "io_uring_enter": 426,
    "io_uring_register": 427, "add_key": 248, "request_key": 249, "keyctl": 250, "fanotify_init": 300,
    "modify_ldt": 154, "personality": 135, "lookup_dcookie": 212,
    # the machine itself
    "kexec_load": 246, "kexec_file_load": 320, "init_module": 175, "finit_module": 313, "delete_module": 176,
    "reboot": 169, "swapon": 167, "swapoff": 168, "acct": 163, "settimeofday": 164, "clock_settime": 227,
    "clock_adjtime": 305, "adjtimex": 159, "syslog": 103, "quotactl": 179, "iopl": 172, "ioperm": 173,
    "sethostname": 170, "setdomainname": 171, "vhangup": 153,
}  # fmt: skip
"""x86-64 system calls answered with EPERM."""

_REFUSED_WITHOUT_NAMESPACES = {
    # further processes, and leaving the group that is killed
    "fork": 57, "vfork": 58, "execve": 59, "execveat": 322, "setsid": 112, "setpgid": 109,
    # signals, priorities, memory of other processes of the same user
    "tkill": 200, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297, "pidfd_open": 434, "pidfd_send_signal": 424,
    "setpriority": 141, "ioprio_set": 251, "process_madvise": 440, "process_mrelease": 448, "migrate_pages": 256,
    "move_pages": 279,
    # sockets with an address
    "socket": 41, "connect": 42, "bind": 49, "listen": 50,
    # System V objects and message queues of the machine
    "shmat": 30, "shmctl": 31, "semop": 65, "semctl": 66, "semtimedop": 220, "msgsnd": 69, "msgrcv": 70, "msgctl": 71,
    "mq_unlink": 241,
    # what Landlock lets a file's owner change
    "chmod": 90, "fchmod": 91, "fchmodat": 268, "fchmodat2": 452, "chown": 92, "fchown": 93, "lchown": 94,
    "fchownat": 260, "utime": 132, "utimes": 235, "futimesat": 261, "utimensat": 280, "truncate": 76, "setxattr": 188,
    "lsetxattr": 189, "fsetxattr": 190, "removexattr": 197, "lremovexattr": 198, "fremovexattr": 199,
    "setxattrat": 463, "removexattrat": 466, "file_setattr": 469, "flock": 73,
    # watching what others do to files, and holding up the machine's disks
    "inotify_init": 253, "inotify_init1": 294, "inotify_add_watch": 254, "sync": 162, "syncfs": 306,
}  # fmt: skip
_ITSELF_ONLY = {
    "kill": 62, "tgkill": 234,
    "prlimit64": 302, "sched_setaffinity": 203, "sched_setscheduler": 144, "sched_setparam": 142, "sched_setattr": 314,
}  # fmt: skip
"""Allowed without namespaces where the first argument is the process itself."""
_ZERO_IS_ITSELF = ("prlimit64", "sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr")
_OWNER_COMMANDS = {
    "fcntl": (72, (8, 15, 1024, 1026)),  # F_SETOWN, F_SETOWN_EX, F_SETLEASE, F_NOTIFY
    "ioctl": (16, (0x8901, 0x8902, 0x5412)),  # FIOSETOWN, SIOCSPGRP, TIOCSTI
}
"""Commands (second argument) that direct signals at any process of the user, or act on others' files and terminals."""
_COMPUTING = {
    # descriptors that it has
    "read": 0, "write": 1, "close": 3, "fstat": 5, "lseek": 8,
    # memory
    "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12, "mremap": 25, "madvise": 28,
    # its own signals, locks and clocks
    "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "sigaltstack": 131, "restart_syscall": 219,
    "futex": 202, "set_robust_list": 273, "rseq": 334, "membarrier": 324, "sched_yield": 24, "sched_getaffinity": 204,
    "gettimeofday": 96, "time": 201, "clock_gettime": 228, "clock_getres": 229,
    # who it is, chance, and its end
    "getpid": 39, "gettid": 186, "getrusage": 98, "getrandom": 318, "exit": 60, "exit_group": 231,
}  # fmt: skip
"""All that is allowed to a process that only computes, beside a signal to itself (`abort`)."""

_Instruction = tuple[int, int, int, int]
_REFUSE: _Instruction = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
_DENY: _Instruction = (_RETURN, 0, 0, _ERRNO | errno.EACCES)
_UNKNOWN: _Instruction = (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)
_PASS: _Instruction = (_RETURN, 0, 0, _ALLOW)


def filter_program(*, namespaces: bool = True) -> bytes:
    """The filter as an array of `struct sock_filter`; raises SandboxError on another machine than x86-64.

    Without namespaces it is the strict one, in which who loads it puts its own process id for `OWN_PROCESS`.
    """
    code = _beginning()
    for number in _REFUSED.values():
        code += [(_EQUAL, 0, 1, number), _REFUSE]
    # Its flags lie in memory, where a filter cannot look; without it, glibc falls back to clone.
    code += [(_EQUAL, 0, 1, _CLONE3), _UNKNOWN]
    if not namespaces:
        code += _without_namespaces()
    code += [(_EQUAL, 0, 4, _CLONE), (_LOAD, 0, 0, _ARGUMENT_0), (_ANY_BIT, 0, 1, _NAMESPACE_FLAGS), _REFUSE, _PASS]
    code += [(_EQUAL, 1, 0, _SOCKET), (_EQUAL, 0, 3, _SOCKETPAIR), (_LOAD, 0, 0, _ARGUMENT_0)]
    code += [(_EQUAL, 1, 0, _AF_UNIX), _DENY, _PASS]
    return _packed(code)


def computing_program() -> bytes:
    """The same for a process that computes with what it has: no path, descriptor, socket, process or signal beyond it.

    Who loads it puts its own process id for `OWN_PROCESS`. Raises SandboxError on another machine than x86-64.
    """
    code = _beginning()
    for number in _COMPUTING.values():
        code += [(_EQUAL, 0, 1, number), _PASS]
    code += _if(_ITSELF_ONLY["tgkill"], _ARGUMENT_0, (OWN_PROCESS,), _PASS, _REFUSE)
    return _packed([*code, _REFUSE])


def _beginning() -> list[_Instruction]:
    """Refuse other numberings of system calls, and load the number; raises SandboxError."""
    if platform.machine() != "x86_64":
        raise SandboxError(f"the filter of system calls is made for x86_64, and this machine is {platform.machine()}")
    return [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, _AUDIT_ARCH_X86_64),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32_BIT),
        _REFUSE,
    ]


def _packed(code: list[_Instruction]) -> bytes:
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _without_namespaces() -> list[_Instruction]:
    code: list[_Instruction] = []
    for number in _REFUSED_WITHOUT_NAMESPACES.values():
        code += [(_EQUAL, 0, 1, number), _REFUSE]
    for name, number in _ITSELF_ONLY.items():
        code += _if(number, _ARGUMENT_0, (OWN_PROCESS, *((0,) if name in _ZERO_IS_ITSELF else ())), _PASS, _REFUSE)
    for number, commands in _OWNER_COMMANDS.values():
        code += _if(number, _ARGUMENT_1, commands, _REFUSE, _PASS)
    # A thread, or nothing: what is left to the general rule are flags that make namespaces beside it.
    code += [(_EQUAL, 0, 4, _CLONE), (_LOAD, 0, 0, _ARGUMENT_0), (_ANY_BIT, 1, 0, _CLONE_THREAD), _REFUSE]
    code += [(_LOAD, 0, 0, _NUMBER)]
    # Datagrams of a pair can be sent to any address.
    code += [(_EQUAL, 0, 4, _SOCKETPAIR), (_LOAD, 0, 0, _ARGUMENT_1), (_ANY_BIT, 0, 1, _NOT_SOCK_STREAM), _DENY]
    code += [(_LOAD, 0, 0, _NUMBER)]
    # Old kernels' Landlock takes a file opened for reading and emptied on the way for one that is only read.
    code += [(_EQUAL, 0, 1, _OPENAT2), _UNKNOWN]
    for number, flags in ((_OPEN, _ARGUMENT_1), (_OPENAT, _ARGUMENT_2)):
        code += [(_EQUAL, 0, 5, number), (_LOAD, 0, 0, flags), (_ANY_BIT, 2, 0, _O_ACCMODE)]
        code += [(_ANY_BIT, 0, 1, _O_TRUNC), _DENY, _PASS]
    return code


def _if(
    number: int, argument: int, values: tuple[int, ...], then: _Instruction, other: _Instruction
) -> list[_Instruction]:
    """One system call: `then` where the low half of its argument is one of the values, else `other`."""
    tests = [(_EQUAL, len(values) - index, 0, value) for index, value in enumerate(values)]
    return [(_EQUAL, 0, len(values) + 3, number), (_LOAD, 0, 0, argument), *tests, other, then]
