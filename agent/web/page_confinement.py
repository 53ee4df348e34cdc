"""What a process that reads pages gives up: for good, and before it sees one.

See landlock(7), seccomp(2), capabilities(7) and Linux `include/uapi/linux/{capability,landlock,prctl}.h`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import struct

from treadle.agent.sandbox.landlock import handled_rights
from treadle.agent.sandbox.seccomp import OWN_PROCESS, computing_program
from treadle.core.errors import SandboxError

CPU_LIMIT_S = 5
"""Of one page."""
MEMORY_LIMIT_BYTES = 1024**3
"""Address space."""

_CAPABILITY_VERSION_3 = 0x20080522
_CREATE_RULESET, _RESTRICT_SELF = 444, 446
_SET_DEATH_SIGNAL, _SET_SECCOMP, _SECCOMP_FILTER, _SET_NO_NEW_PRIVS = 1, 22, 2, 38


def limit_memory() -> None:
    """Bound what this process and its children may take; they can write no file."""
    _limit(resource.RLIMIT_AS, MEMORY_LIMIT_BYTES)
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_CORE, 0)


def give_up_files() -> None:
    """Give up privileges, and all files by their paths where the kernel has Landlock, for this process and children."""
    libc = ctypes.CDLL(None, use_errno=True)
    # Privileges of root lift limits.
    libc.capset((ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)())
    libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    # Without it the filter of `confine` stands alone; it allows nothing that takes a path.
    with contextlib.suppress(SandboxError):
        ruleset = libc.syscall(_CREATE_RULESET, struct.pack("=3Q", *handled_rights()), 24, 0)
        if ruleset >= 0:
            libc.syscall(_RESTRICT_SELF, ruleset, 0)
            os.close(ruleset)


def die_with(parent: int) -> None:
    """End when the parent does, also when it has by now."""
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def confine() -> str:
    """Give up all but computing with what there is; what could not be given up, empty where all could.

    The kernel ends the process when its CPU time is over.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    _limit(resource.RLIMIT_CPU, CPU_LIMIT_S, CPU_LIMIT_S + 1)
    _limit(resource.RLIMIT_NOFILE, 0)
    try:
        code = computing_program()
    except SandboxError as error:
        return str(error)
    code = code.replace(struct.pack("=I", OWN_PROCESS), struct.pack("=I", os.getpid()))
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))
    if libc.prctl(_SET_SECCOMP, _SECCOMP_FILTER, program, 0, 0):
        return f"the kernel takes no filter of system calls: {os.strerror(ctypes.get_errno())}"
    return ""


def _limit(kind: int, value: int, hard: int | None = None) -> None:
    # Not every platform takes every limit.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(kind, (value, value if hard is None else hard))
