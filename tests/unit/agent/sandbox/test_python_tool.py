"""The parts of the Python tool that need no sandbox: fences, endings, cleaning and cutting of output."""

from __future__ import annotations

import errno
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.agent.sandbox import system_calls
from treadle.agent.sandbox.config import SandboxSettings
from treadle.agent.sandbox.process import ProgramResult
from treadle.agent.sandbox.seccomp import filter_program
from treadle.agent.tools.outcome import clip
from treadle.agent.tools.python import clean, read_result, strip_fence
from treadle.core.config import semantic_dump


def _result(exit_code: int | None = 0, stdout: str = "", stderr: str = "", **ended: Any) -> ProgramResult:
    flags = {"timed_out": False, "output_exceeded": False, "excess": None} | ended
    return ProgramResult(exit_code=exit_code, stdout=stdout, stderr=stderr, seconds=0.0, **flags)


@pytest.mark.parametrize(
    ("argument", "program"),
    [
        ("print(1)", "print(1)"),
        ("```python\nprint(1)\n```", "print(1)\n"),
        ("\n  ```py\nprint(1)\n```  \n", "print(1)\n"),
        ("````\n```\n````", "```\n"),
        ("```python\nprint(1)", "print(1)"),
        ("```1+1```", "1+1"),
        ("x = '```'", "x = '```'"),
        ("print(1)\n```", "print(1)\n```"),
        ("```\n```", ""),
    ],
)
def test_only_an_enclosing_fence_is_removed(argument: str, program: str) -> None:
    assert strip_fence(argument) == program


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (_result(stdout="2\n"), ("ok", "2")),
        (_result(stderr="a warning"), ("empty", "")),
        (_result(1, "so far", "Traceback\nValueError: x\n"), ("error", "Traceback\nValueError: x")),
        (_result(3, "so far\n"), ("error", "so far")),
        (_result(3), ("error", "The program ended with exit code 3.")),
        (_result(139), ("error", "The program was killed by signal 11.")),
        (_result(152), ("timeout", "Execution Timeout")),
        (_result(None, "so far", timed_out=True), ("timeout", "Execution Timeout")),
        (
            _result(None, "so far", "MemoryError", excess="memory"),
            ("error", "MemoryError\n[killed: its processes held too much memory]"),
        ),
        (_result(None, excess="files"), ("error", "[killed: it made too many files]")),
        (_result(None, "xxx", output_exceeded=True), ("error", "xxx\n[killed: it printed too much]")),
    ],
)
def test_status_follows_from_how_the_program_ended(result: ProgramResult, expected: tuple[str, str]) -> None:
    assert read_result(result) == expected


def test_clean_output_is_valid_text_without_nul() -> None:
    assert clean("\n\n  a\0b\r\nc\ud800 \n\n") == "  ab\nc?"


def test_truncated_text_keeps_head_and_tail_and_reports_the_omitted_length() -> None:
    text = "head" + "x" * 2000 + "tail"
    cut = clip(text, 100)
    assert (len(cut), cut[:4], cut[-4:]) == (100, "head", "tail")
    missing = int(cut.partition("[")[2].partition(" ")[0])
    assert missing == len(text) - (100 - len(f"\n... [{missing} characters left out] ...\n"))


@given(st.text(max_size=400), st.one_of(st.none(), st.integers(16, 300)), st.floats(0, 1))
def test_only_overlong_text_is_truncated_and_never_exceeds_the_limit(
    text: str, limit: int | None, share: float
) -> None:
    cut = clip(text, limit, share)
    if limit is None or len(text) <= limit:
        assert cut == text
    else:
        assert len(cut) <= limit


def test_warm_pool_size_does_not_change_the_fingerprint() -> None:
    assert set(semantic_dump(SandboxSettings())) == {
        "kind", "packages", "memory_mb", "scratch_mb", "max_processes", "cpu_s", "max_output_mb",
    }  # fmt: skip


_CODE = {
    (namespaces, own): list(struct.iter_unpack("=HBBI", filter_program(namespaces=namespaces, own_files=own)))
    for namespaces, own in ((True, True), (True, False), (False, False))
}


def _answer(number: int, *arguments: int, arch: int = 0xC000003E, namespaces: bool = True, own: bool = False) -> int:
    """Return the filter's answer to a system call, by running it."""
    data = struct.pack("<IIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    code = _CODE[namespaces, own]
    at, accumulator = 0, 0
    while True:
        operation, if_true, if_false, value = code[at]
        at += 1
        match operation:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, value)
            case 0x06:
                return value
            case 0x15:
                at += if_true if accumulator == value else if_false
            case 0x35:
                at += if_true if accumulator >= value else if_false
            case 0x54:
                accumulator &= value


def _verdict(answer: int) -> str:
    return {0x7FFF0000: "allow", 0x80000000: "kill", 0x00050000: "pretend"}.get(answer, "refuse")


@pytest.mark.parametrize(
    ("number", "arguments", "verdict"),
    [
        (0, (), "allow"),
        (9, (0, 4096, 3, 0x22), "allow"),
        (9, (0, 4096, 3, 0x01, 5), "allow"),
        (9, (0, 4096, 3, 0x21), "refuse"),
        (9, (0, 4096, 3, 0x40022), "refuse"),
        (28, (0, 4096, 4), "allow"),
        (28, (0, 4096, 3), "pretend"),
        (28, (0, 4096, 9), "refuse"),
        (56, (0x003D0F00,), "allow"),
        (56, (0x10000011,), "refuse"),
        (72, (3, 1), "allow"),
        (72, (3, 6), "pretend"),
        (72, (3, 37), "pretend"),
        (72, (3, 1031), "refuse"),
        (141, (0, 0, 19), "allow"),
        (141, (0, 1, 19), "refuse"),
        (141, (2, 0, 19), "refuse"),
        (259, (0, 0, 0o010600), "allow"),
        (259, (0, 0, 0o020600), "refuse"),
        (302, (0,), "allow"),
        (302, (1,), "refuse"),
        (145, (0,), "allow"),
        (145, (1,), "refuse"),
        (326, (), "allow"),
        (40, (), "refuse"),
        (99, (), "refuse"),
        (137, (), "refuse"),
        (327, (0, 0, 0, 0, 0, 8), "refuse"),
        (272, (0x10000000,), "refuse"),
        (435, (), "refuse"),
        (41, (1,), "allow"),
        (53, (1,), "allow"),
        (41, (2,), "refuse"),
        (41, (40,), "refuse"),
        (162, (), "pretend"),
        (280, (), "pretend"),
        (319, (), "refuse"),
        (458, (), "refuse"),
        (0x40000000, (), "refuse"),
    ],
)
def test_filter_allows_listed_calls_and_blocks_the_others(
    number: int, arguments: tuple[int, ...], verdict: str
) -> None:
    assert _verdict(_answer(number, *arguments)) == verdict


@pytest.mark.parametrize(
    ("number", "arguments", "own", "shared"),
    [
        (280, (), "allow", "pretend"),
        (92, (0, 0xFFFFFFFF, 0xFFFFFFFF), "allow", "pretend"),
        (92, (0, 0xFFFFFFFF, 0), "refuse", "refuse"),
        (260, (0, 0, 0xFFFFFFFF, 0xFFFFFFFF), "allow", "pretend"),
        (72, (3, 6), "allow", "pretend"),
        (72, (3, 38), "allow", "pretend"),
        (72, (3, 5), "pretend", "allow"),
        (72, (3, 36), "pretend", "allow"),
        (72, (3, 1), "allow", "allow"),
        (72, (3, 1031), "refuse", "refuse"),
        (73, (), "refuse", "pretend"),
    ],
)
def test_filter_allows_locks_and_timestamps_only_without_shared_files(
    number: int, arguments: tuple[int, ...], own: str, shared: str
) -> None:
    assert _verdict(_answer(number, *arguments, own=True)) == own
    assert _verdict(_answer(number, *arguments, own=False)) == shared
    assert _answer(73, own=True) & 0xFFFF == errno.ENOLCK


def test_filter_kills_calls_of_another_architecture() -> None:
    assert _verdict(_answer(0, arch=0x40000003)) == "kill"


@pytest.mark.parametrize("namespaces", [True, False])
def test_filter_allows_no_call_missing_from_the_table(namespaces: bool) -> None:
    """With arguments of zero, which satisfy some conditions; conditions have their own test above."""
    listed = {number: condition for number, condition in system_calls.allowed(namespaces=namespaces).values()}
    pretended = {
        number
        for calls in system_calls.pretended(own_files=False)
        if calls.condition is None
        for number in calls.numbers.values()
    }
    for number in range(600):
        verdict = _verdict(_answer(number, namespaces=namespaces))
        if number in listed:
            assert verdict == "allow" or listed[number] is not None
        else:
            assert verdict == ("pretend" if number in pretended else "refuse")


def test_filter_answers_refused_new_calls_like_an_older_kernel() -> None:
    assert _answer(458) & 0xFFFF == errno.ENOSYS
    assert _answer(278) & 0xFFFF == errno.EPERM


def test_each_number_and_name_is_listed_once() -> None:
    others = (calls for calls in system_calls.pretended(own_files=False) if calls.condition is None)
    groups = (*system_calls.ALLOWED, *others)
    names = [name for calls in groups for name in calls.numbers]
    numbers = [number for calls in groups for number in calls.numbers.values()]
    assert len(set(names)) == len(names)
    assert len(set(numbers)) == len(numbers)


def test_each_allowed_call_has_a_reason() -> None:
    pretended = (*system_calls.pretended(own_files=False), *system_calls.pretended(own_files=True))
    assert all(calls.reason for calls in (*system_calls.ALLOWED, *pretended))
