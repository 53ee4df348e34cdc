"""The system-call filters of the sandbox, as BPF programs for the kernel.

The filters allow the calls that `system_calls` lists and refuse all others. The first is for sandboxes with namespaces.
It blocks what namespaces do not: memory that no limit counts, communication between sandboxes through shared files,
resources that the kernel counts per user, and large, rarely needed parts of the kernel. The second, stricter one is for
sandboxes without namespaces. It also blocks access to the machine's other processes, and to files in ways that Landlock
does not check. `core/untrusted/seccomp_filter.py` has a third, for processes that only compute.
Format: Linux `struct seccomp_data` and classic BPF (Documentation/userspace-api/seccomp_filter.rst).
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Sequence

from treadle.agent.sandbox.system_calls import (
    ANSWERED,
    ANSWERED_ON_OWN_FILES,
    NAMESPACE_FLAGS,
    NEWER_THAN,
    ON_OWN_FILES,
    REFUSED_TO_SERVERS,
    Condition,
    allowed,
    pretended,
)
from treadle.core.errors import SandboxError

_AUDIT_ARCH_X86_64 = 0xC000003E
_X32_BIT = 0x40000000
_NUMBER, _ARCH, _ARGUMENT_0 = 0, 4, 16
_LOAD, _EQUAL, _AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
_CLONE, _CLONE3 = 56, 435
_UNKNOWN_TO_SERVERS = 452
"""Least number of a system call that is newer than the list `REFUSED_TO_SERVERS` (Linux 6.6)."""
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000

_Instruction = tuple[int, int, int, int]
_REFUSE: _Instruction = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
_UNKNOWN: _Instruction = (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)
_SUCCEED: _Instruction = (_RETURN, 0, 0, _ERRNO)
_PASS: _Instruction = (_RETURN, 0, 0, _ALLOW)


def filter_program(*, namespaces: bool = True, own_files: bool = False) -> bytes:
    """Return the filter as an array of `struct sock_filter`; raise SandboxError if the machine is not x86-64.

    Without `namespaces` it is the stricter filter. The process that loads it must replace `OWN_PROCESS` in it by its
    own id. `own_files` means that no other sandbox sees the files and device nodes that the program can write.
    """
    code = _beginning()
    for number, answers in _answers(namespaces, own_files).items():
        clauses = [[then] if condition is None else _clause(condition, then) for condition, then in answers]
        if (last := answers[-1][0]) is not None:
            clauses.append([(_RETURN, 0, 0, _ERRNO | last.errno)])
        code += _block(number, clauses)
    return _packed([*code, (_AT_LEAST, 0, 1, NEWER_THAN + 1), _UNKNOWN, _REFUSE])


def server_filter_program() -> bytes:
    """Return the filter for servers that users choose: all calls but those of `REFUSED_TO_SERVERS`; see `servers`."""
    code = _beginning()
    for number in REFUSED_TO_SERVERS.values():
        code += _block(number, [[_REFUSE]])
    no_namespaces = [(_LOAD, 0, 0, _ARGUMENT_0), (_AND, 0, 0, NAMESPACE_FLAGS), (_EQUAL, 0, 1, 0), _PASS, _REFUSE]
    code += _block(_CLONE, [no_namespaces])
    # Its flags are in memory, which a filter cannot read; libraries then use `clone`.
    code += _block(_CLONE3, [[_UNKNOWN]])
    return _packed([*code, (_AT_LEAST, 0, 1, _UNKNOWN_TO_SERVERS), _UNKNOWN, _PASS])


def _answers(namespaces: bool, own_files: bool) -> dict[int, list[tuple[Condition | None, _Instruction]]]:
    """Return pairs (condition, instruction) by the number of a system call.

    The filter tests the conditions of a call in this order and runs the instruction of the first that holds; None
    always holds. If none holds, the call fails with the `errno` of the last condition. Frequent calls come first. Calls
    without an entry are refused.
    """
    passed = allowed(namespaces=namespaces)
    found: dict[int, list[tuple[Condition | None, _Instruction]]] = {number: [] for number, _ in passed.values()}
    for calls, answer in (
        *((calls, _SUCCEED) for calls in pretended(own_files=own_files)),
        *((calls, _PASS) for calls in (ON_OWN_FILES if own_files else ())),
    ):
        for number in calls.numbers.values():
            found.setdefault(number, []).append((calls.condition, answer))
    for number, condition in passed.values():
        found[number].append((condition, _PASS))
    for error, numbers in (ANSWERED | (ANSWERED_ON_OWN_FILES if own_files else {})).items():
        for number in numbers.values():
            found.setdefault(number, []).append((None, (_RETURN, 0, 0, _ERRNO | error)))
    return found


def _beginning() -> list[_Instruction]:
    """Return instructions that refuse calls of other architectures and load the call's number; raise SandboxError."""
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


def _block(number: int, clauses: Sequence[Sequence[_Instruction]]) -> list[_Instruction]:
    """Return the instructions for one system call; they end with a return."""
    body = [instruction for clause in clauses for instruction in clause]
    return [(_EQUAL, 0, len(body), number), *body]


def _clause(condition: Condition, then: _Instruction) -> list[_Instruction]:
    """Return instructions that run `then` if all tests pass, and otherwise jump to the instruction after them."""
    code: list[_Instruction] = [then]
    for test in reversed(condition.tests):
        to_end = len(code)
        values = len(test.values)
        equal = [
            (_EQUAL, values - 1 - index, to_end if index == values - 1 else 0, value)
            for index, value in enumerate(test.values)
        ]
        masked = [(_AND, 0, 0, test.mask)] if test.mask != 0xFFFFFFFF else []
        code = [(_LOAD, 0, 0, _ARGUMENT_0 + 8 * test.argument), *masked, *equal, *code]
    return code
