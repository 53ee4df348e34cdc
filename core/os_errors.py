"""Explain errors of the operating system for users: what happened to a file, and what to do about it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

_AGAIN = "then run the same command again; what was finished is kept"

_MEANINGS = {
    errno.ENOSPC: f"the disk is full: free space, {_AGAIN}",
    errno.EDQUOT: f"the disk quota of this user is used up, for space or for number of files: free some, {_AGAIN}",
    errno.EFBIG: "the file would grow larger than allowed: raise the limit with `ulimit -f`",
    errno.EROFS: "the file system is read-only: choose another root",
    errno.EACCES: "permission denied: choose a root that this user may read and write, or change its owner",
    errno.EPERM: "operation not permitted: choose a root that this user may read and write",
    errno.EMFILE: "too many open files in this process: raise the limit with `ulimit -n`",
    errno.ENFILE: "too many open files on this machine: end other programs, or raise fs.file-max with sysctl",
    errno.ENOMEM: f"the system has no memory left for it: end other programs, {_AGAIN}",
    errno.ENAMETOOLONG: "the name is too long for this file system: use shorter run and model names",
    errno.ELOOP: "symbolic links lead in a circle: correct them",
    errno.ENOENT: f"it does not exist: if it was moved or deleted, put it back, {_AGAIN}",
    errno.ENOTDIR: "there is a file where a folder is expected: choose another root",
    errno.EEXIST: "there is a file where a folder is expected: choose another root",
    errno.EISDIR: "there is a folder where a file is expected: move it away",
    errno.EBUSY: "it is in use by another program or machine: wait, or end that, then run the same command again",
    errno.EIO: "the disk reports a read or write failure: check the device",
    errno.EUCLEAN: "the file system is damaged: have it checked (fsck)",
    errno.ENOLCK: "the file system has no lock service: on NFS, check that rpc.statd and lockd run on both sides; or "
    "choose a root on another file system",
    **dict.fromkeys(
        (errno.EOPNOTSUPP, errno.ENOSYS),
        "the file system cannot do this (such as lock files): mount it with that option, or choose a root on another "
        "one",
    ),
    errno.ESTALE: f"its server has replaced or deleted it (stale file handle): check the mount, {_AGAIN}",
    **dict.fromkeys(
        (errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ETIMEDOUT, errno.ENODEV, errno.ENXIO),
        f"the file system does not answer: its server or mount is gone; mount it again, {_AGAIN}",
    ),
}
_OF_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
_OF_MACHINE = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
_FEW_INODES, _SOME_BYTES = 4, 65_536
_NO_INODES = f"the disk is full of files: it has free space, but all its inodes are in use; delete files, {_AGAIN}"


def meaning_of(error: OSError, path: Path | str) -> str:
    """Return what an error at a path means and what to do about it."""
    if error.errno == errno.ENOSPC and _has_no_inodes(Path(error.filename or path)):
        return _NO_INODES
    return _MEANINGS.get(error.errno or 0, os.strerror(error.errno) if error.errno else str(error))


def explained(error: OSError) -> str:
    """Return one line about an OSError that no other code has explained, or "" if it is not a file system error.

    An error without a file name may come from a socket. It is then explained only if its cause is a full or broken disk
    (the line names the output), a limit of the process or machine (the line names no file), or a deleted current
    folder.
    """
    if error.errno not in _MEANINGS:
        return ""
    if isinstance(error.filename, str | bytes):
        place = os.fsdecode(error.filename)
    elif error.errno in _OF_MACHINE:
        return meaning_of(error, "")
    elif error.errno in _OF_DISK:
        place = "the output"
    elif error.errno == errno.ENOENT and _current_folder_is_gone():
        place = "the current folder"
    else:
        return ""
    return f"cannot use {place}: {meaning_of(error, place)}"


def _current_folder_is_gone() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _has_no_inodes(path: Path) -> bool:
    """Return whether the file system of a path is out of inodes and not out of space."""
    for place in (path, *path.parents):
        try:
            facts = os.statvfs(place)
        except OSError:
            continue
        # File systems that create inodes on demand report a total of 0. A clean-up may have freed a few inodes
        # meanwhile.
        return bool(facts.f_files) and facts.f_favail < _FEW_INODES and facts.f_bavail * facts.f_frsize > _SOME_BYTES
    return False
