"""Confine processes that parse untrusted bytes with native code, permanently and with their children.

See landlock(7), seccomp(2), capabilities(7) and Linux `include/uapi/linux/{capability,landlock,prctl}.h`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import struct

from treadle.core.errors import SandboxError
from treadle.core.untrusted.landlock_rights import CREATE_RULESET, handled_rights
from treadle.core.untrusted.seccomp_filter import seccomp_program

_CAPABILITY_VERSION_3 = 0x20080522
_RESTRICT_SELF = 446
_SET_DEATH_SIGNAL, _SET_SECCOMP, _SECCOMP_FILTER, _SET_NO_NEW_PRIVS = 1, 22, 2, 38


def limit_memory(address_space_bytes: int, *, may_write: bool = False) -> None:
    """Limit the memory of this process and its children; forbid core dumps, and writing files unless allowed."""
    _limit(resource.RLIMIT_AS, address_space_bytes)
    if not may_write:
        _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_CORE, 0)


def drop_file_access() -> None:
    """Drop privileges, and access to files by path if the kernel has Landlock, for this process and its children."""
    libc = ctypes.CDLL(None, use_errno=True)
    # Root privileges lift resource limits.
    libc.capset((ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)())
    libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    # Without Landlock, the seccomp filter of `confine` remains; it allows no system call that takes a path.
    with contextlib.suppress(SandboxError):
        ruleset = libc.syscall(CREATE_RULESET, struct.pack("=3Q", *handled_rights()), 24, 0)
        if ruleset >= 0:
            libc.syscall(_RESTRICT_SELF, ruleset, 0)
            os.close(ruleset)


def die_with_parent(parent: int) -> None:
    """Make the kernel kill this process when its parent ends; exit at once if it already has."""
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def confine(cpu_limit_s: int | None = None) -> str:
    """Restrict this process to computing; return what could not be restricted, or an empty string.

    The kernel ends the process once its CPU time is used up.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if cpu_limit_s is not None:
        _limit(resource.RLIMIT_CPU, cpu_limit_s, cpu_limit_s + 1)
    _limit(resource.RLIMIT_NOFILE, 0)
    try:
        code = seccomp_program(os.getpid())
    except SandboxError as error:
        return str(error)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))
    if libc.prctl(_SET_SECCOMP, _SECCOMP_FILTER, program, 0, 0):
        return f"the kernel does not accept a system call filter: {os.strerror(ctypes.get_errno())}"
    return ""


def _limit(kind: int, value: int, hard: int | None = None) -> None:
    # Not every platform supports every limit.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(kind, (value, value if hard is None else hard))
