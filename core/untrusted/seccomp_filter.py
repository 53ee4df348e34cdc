"""The system-call filter for a process that has all it needs and only computes, as a BPF program for the kernel.

It names what is allowed; all else is refused. Format: Linux `struct seccomp_data` and classic BPF
(Documentation/userspace-api/seccomp_filter.rst).
"""

from __future__ import annotations

import errno
import platform
import struct

from treadle.core.errors import SandboxError

_AUDIT_ARCH_X86_64 = 0xC000003E
_X32_BIT = 0x40000000
_NUMBER, _ARCH, _ARGUMENT_0 = 0, 4, 16
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM
_TGKILL = 234
_ALLOWED_CALLS = {
    # descriptors that it has
    "read": 0, "write": 1, "close": 3, "fstat": 5, "lseek": 8,
    # memory
    "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12, "mremap": 25, "madvise": 28,
    # its own signals, locks and clocks
    "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "sigaltstack": 131, "restart_syscall": 219,
    "futex": 202, "set_robust_list": 273, "rseq": 334, "membarrier": 324, "sched_yield": 24, "sched_getaffinity": 204,
    "gettimeofday": 96, "time": 201, "clock_gettime": 228, "clock_getres": 229,
    # process and thread ids, resource usage, random numbers, exit
    "getpid": 39, "gettid": 186, "getrusage": 98, "getrandom": 318, "exit": 60, "exit_group": 231,
}  # fmt: skip
"""All x86-64 system calls that are allowed, next to a signal to itself (`abort`)."""


def seccomp_program(process: int) -> bytes:
    """Return the filter as an array of `struct sock_filter`, for the process that loads it, by its id.

    The process can use no path, and no descriptor, socket, process or signal that it does not already have. Raises
    SandboxError on another machine than x86-64.
    """
    if platform.machine() != "x86_64":
        raise SandboxError(f"the system call filter supports only x86_64, and this machine is {platform.machine()}")
    code = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, _AUDIT_ARCH_X86_64),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32_BIT),
        (_RETURN, 0, 0, _REFUSE),
    ]
    for number in _ALLOWED_CALLS.values():
        code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    code += [(_EQUAL, 0, 3, _TGKILL), (_LOAD, 0, 0, _ARGUMENT_0), (_EQUAL, 0, 1, process), (_RETURN, 0, 0, _ALLOW)]
    code += [(_RETURN, 0, 0, _REFUSE)]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
