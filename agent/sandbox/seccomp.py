"""The system-call filter of the sandbox, as the BPF program that `bwrap --seccomp` loads.

It stands behind the namespaces: it closes what they leave open (new user namespaces for a program that was started
by root, sockets that no network namespace covers such as AF_VSOCK, memory that no resource limit counts such as
memfd and System V segments) and takes large, rarely needed parts of the kernel out of reach.
Format: Linux `struct seccomp_data` and classic BPF (Documentation/userspace-api/seccomp_filter.rst).
"""

from __future__ import annotations

import errno
import platform
import struct

from treadle.core.errors import SandboxError

_AUDIT_ARCH_X86_64 = 0xC000003E
_X32_BIT = 0x40000000
_NUMBER, _ARCH, _ARGUMENT_0 = 0, 4, 16
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NAMESPACE_FLAGS = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
_AF_UNIX = 1
_CLONE, _CLONE3, _SOCKET, _SOCKETPAIR = 56, 435, 41, 53

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


def filter_program() -> bytes:
    """The filter as an array of `struct sock_filter`; raises SandboxError on another machine than x86-64."""
    if platform.machine() != "x86_64":
        raise SandboxError(f"the sandbox knows the system calls of x86_64 only, this machine is {platform.machine()}")
    refuse = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    allow = (_RETURN, 0, 0, _ALLOW)
    code = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, _AUDIT_ARCH_X86_64),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32_BIT),
        refuse,
    ]
    for number in _REFUSED.values():
        code += [(_EQUAL, 0, 1, number), refuse]
    # Its flags lie in memory, where a filter cannot look; without it, glibc falls back to clone.
    code += [(_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    code += [(_EQUAL, 0, 4, _CLONE), (_LOAD, 0, 0, _ARGUMENT_0), (_ANY_BIT, 0, 1, _NAMESPACE_FLAGS), refuse, allow]
    code += [(_EQUAL, 1, 0, _SOCKET), (_EQUAL, 0, 3, _SOCKETPAIR), (_LOAD, 0, 0, _ARGUMENT_0)]
    code += [(_EQUAL, 1, 0, _AF_UNIX), (_RETURN, 0, 0, _ERRNO | errno.EACCES), allow]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
