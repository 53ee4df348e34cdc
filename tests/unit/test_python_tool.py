"""The parts of the Python tool that need no sandbox: fences, endings, cleaning and cutting of output."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.agent.sandbox.config import SandboxSettings
from treadle.agent.sandbox.process import ProgramResult
from treadle.agent.sandbox.seccomp import filter_program
from treadle.agent.tools.python import clean, clip, read_result, strip_fence
from treadle.core.config import semantic_dump


def _result(exit_code: int | None = 0, stdout: str = "", stderr: str = "", **ended: bool) -> ProgramResult:
    flags = {"timed_out": False, "flooded": False, "overfull": False} | ended
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
def test_an_enclosing_fence_is_taken_off_and_nothing_else(argument: str, program: str) -> None:
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
            _result(None, "so far", "MemoryError", overfull=True),
            ("error", "MemoryError\n[killed: its processes held too much memory]"),
        ),
        (_result(None, "xxx", flooded=True), ("error", "xxx\n[killed: it printed too much]")),
    ],
)
def test_the_status_comes_from_how_the_program_ended(result: ProgramResult, expected: tuple[str, str]) -> None:
    assert read_result(result) == expected


def test_clean_output_is_valid_text_without_nul() -> None:
    assert clean("\n\n  a\0b\r\nc\ud800 \n\n") == "  ab\nc?"


def test_a_cut_text_keeps_head_and_tail_and_says_how_much_is_missing() -> None:
    text = "head" + "x" * 2000 + "tail"
    cut = clip(text, 100)
    assert (len(cut), cut[:4], cut[-4:]) == (100, "head", "tail")
    missing = int(cut.partition("[")[2].partition(" ")[0])
    assert missing == len(text) - (100 - len(f"\n... [{missing} characters left out] ...\n"))


@given(st.text(max_size=400), st.one_of(st.none(), st.integers(16, 300)), st.floats(0, 1))
def test_a_text_is_cut_only_when_it_is_too_long_and_never_longer_than_allowed(
    text: str, limit: int | None, share: float
) -> None:
    cut = clip(text, limit, share)
    if limit is None or len(text) <= limit:
        assert cut == text
    else:
        assert len(cut) <= limit


def test_how_many_sandboxes_are_kept_warm_does_not_change_the_fingerprint() -> None:
    assert set(semantic_dump(SandboxSettings())) == {
        "kind", "packages", "memory_mb", "scratch_mb", "max_processes", "cpu_s", "max_output_mb",
    }  # fmt: skip


def _answer(number: int, argument: int = 0, arch: int = 0xC000003E) -> int:
    """What the filter says to a system call, by running it."""
    data = struct.pack("<IIQ6Q", number, arch, 0, argument, 0, 0, 0, 0, 0)
    code = [struct.unpack("=HBBI", filter_program()[at : at + 8]) for at in range(0, len(filter_program()), 8)]
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
            case 0x45:
                at += if_true if accumulator & value else if_false


@pytest.mark.parametrize(
    ("call", "verdict"),
    [
        ({"number": 0}, "allow"),
        ({"number": 56, "argument": 0x003D0F00}, "allow"),
        ({"number": 56, "argument": 0x10000011}, "refuse"),
        ({"number": 272, "argument": 0x10000000}, "refuse"),
        ({"number": 435}, "refuse"),
        ({"number": 41, "argument": 1}, "allow"),
        ({"number": 53, "argument": 1}, "allow"),
        ({"number": 41, "argument": 2}, "refuse"),
        ({"number": 41, "argument": 40}, "refuse"),
        ({"number": 319}, "refuse"),
        ({"number": 0x40000000}, "refuse"),
        ({"number": 0, "arch": 0x40000003}, "kill"),
    ],
)
def test_filter_lets_plain_calls_pass_and_stops_the_others(call: dict[str, int], verdict: str) -> None:
    answer = _answer(**call)
    assert {0x7FFF0000: "allow", 0x80000000: "kill"}.get(answer, "refuse") == verdict
