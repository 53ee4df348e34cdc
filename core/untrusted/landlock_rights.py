"""Determine which rights the kernel's Landlock can restrict: landlock(7), Linux `include/uapi/linux/landlock.h`."""

from __future__ import annotations

import ctypes
import errno
import functools
import os

from treadle.core.errors import SandboxError

CREATE_RULESET = 444
"""Number of the system call `landlock_create_ruleset`."""
_GET_VERSION = 1
_FILE_RIGHTS = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 5: 0xFFFF}
"""Landlock version -> its rights to files. Versions 2, 3 and 5 added moving, truncating and device commands."""
_TCP_RIGHTS, _SCOPES = 0b11, 0b11
_NO_LANDLOCK = {
    errno.ENOSYS: "the kernel is older than Linux 5.13, was built without it, or a container's filter hides it",
    errno.EOPNOTSUPP: "it is switched off at boot: add `landlock` to the kernel parameter `lsm=`",
}


def version() -> int:
    """Return the version of the kernel's Landlock; raise SandboxError if it has none."""
    found = int(_libc().syscall(CREATE_RULESET, None, 0, _GET_VERSION))
    if found >= 1:
        return found
    number = ctypes.get_errno()
    reason = _NO_LANDLOCK.get(number, os.strerror(number))
    raise SandboxError(f'programs cannot be isolated with kind = "landlock" here: no Landlock ({reason})')


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def handled_rights() -> list[int]:
    """Return bit masks of the restrictable rights to files and to TCP ports, and of the scopes; raise SandboxError."""
    known = version()
    rights = _FILE_RIGHTS[max(since for since in _FILE_RIGHTS if since <= known)]
    return [rights, _TCP_RIGHTS if known >= 4 else 0, _SCOPES if known >= 6 else 0]
