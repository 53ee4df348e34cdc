"""Mount device nodes for one sandbox, if root starts it: sandboxes could signal each other through shared nodes.

The nodes are in a file system that is read-only as a whole. It is mounted in a mount namespace that ends with the
sandbox, so there is nothing to delete. An ordinary user cannot make device nodes; its sandboxes show those of the
machine, and the system-call filter hides their locks, time stamps and change notifications.

The guardian imports this module by path, so it imports nothing of Treadle and little else. Run by path with
`python -S -E -I`, it fails if nodes cannot be made and opened.
"""

from __future__ import annotations

import ctypes
import os
import stat

DEVICES = {"null": (1, 3), "full": (1, 7), "random": (1, 8), "urandom": (1, 9)}
"""Name -> major and minor number. `zero` is left out: mapping it gives shared memory that no limit counts."""
FOLDER = "/sys"
"""Where the nodes are mounted: a folder that bubblewrap does not read."""

# Linux `include/uapi/linux/{mount,sched}.h`.
_CLONE_NEWNS = 0x20000
_RDONLY, _NOSUID, _NOEXEC, _REMOUNT, _REC, _SLAVE = 1, 2, 8, 32, 1 << 14, 1 << 19


def mount_nodes() -> None:
    """Move this process into its own mount namespace and mount new nodes at `FOLDER` there. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(_CLONE_NEWNS), "mount namespace")
    # Later mounts of the machine's own namespace still appear in this one, but not the other way round.
    _mount(libc, None, "/", None, _REC | _SLAVE)
    _mount(libc, "treadle", FOLDER, "tmpfs", _NOSUID | _NOEXEC, "size=4k,mode=755")
    for name, (major, minor) in DEVICES.items():
        path = f"{FOLDER}/{name}"
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        os.chmod(path, 0o666)
    # Without MS_BIND the file system itself becomes read-only, through whatever mount it is reached.
    _mount(libc, None, FOLDER, None, _REMOUNT | _RDONLY | _NOSUID | _NOEXEC)


def _mount(libc: ctypes.CDLL, source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    words = (None if word is None else word.encode() for word in (source, target, kind))
    _check(libc.mount(*words, ctypes.c_ulong(flags), data.encode()), f"mount at {target}")


def _check(result: int, what: str) -> None:
    if result:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    mount_nodes()
    os.close(os.open(f"{FOLDER}/null", os.O_WRONLY))
