"""The tool `code`, without a sandbox: how calls are read, and what the model sees of a result."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.agent.sandbox.process import ProgramResult
from treadle.agent.tools.outcome import clip
from treadle.agent.tools.python import MAX_PROGRAM_CHARS
from treadle.environments.planning.tools.code import MAX_STDIN_CHARS, CodeCall, describe, parse_call


@pytest.mark.parametrize(
    ("text", "program", "stdin"),
    [
        ("```py\nprint(1)\n```", "print(1)\n", ""),
        ("\n```python\nprint(1)\n```\n", "print(1)\n", ""),
        ("```py\nprint(input())\n```\n```sh\n3\n4\n```", "print(input())\n", "3\n4\n"),
        ("Try it:\n```python\nprint(input())\n```\nwith\n```bash\n 3\n```", "print(input())\n", " 3\n"),
        ("print(1)", "print(1)", ""),
        ("print(input())\n```sh\nx\n```", "print(input())\n", "x\n"),
        ("```\nprint(1)\n```", "print(1)\n", ""),
        ("```text\nnote\n```\n```py\nprint(1)\n```", "print(1)\n", ""),
        ("```py\nprint(1)", "print(1)", ""),
        ("```py\nprint(1)\n```\n```sh\n```", "print(1)\n", ""),
    ],
)
def test_call_is_a_program_and_its_input(text: str, program: str, stdin: str) -> None:
    assert parse_call(text) == CodeCall(program, stdin)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "```py\n```",
        "```sh\n3\n```",
        "```sh\n3\n```\n```py\nx\n```",
        "```py\nx\n```\n```py\ny\n```",
        "```py\nx\n```\n```sh\n3\n```\n```sh\n4\n```",
        "x" * (MAX_PROGRAM_CHARS + 1),
        f"```py\nx\n```\n```sh\n{'x' * (MAX_STDIN_CHARS + 1)}\n```",
    ],
)
def test_call_that_cannot_be_read_says_why(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w+") as caught:
        parse_call(text)
    assert len(str(caught.value)) < 200


@given(st.text(alphabet="`pysh\n x", max_size=60))
def test_any_text_is_a_call_or_an_error(text: str) -> None:
    try:
        call = parse_call(text)
    except ValueError:
        return
    assert call.program in text
    assert call.stdin in text


def _result(exit_code: int | None = 0, stdout: str = "", stderr: str = "", **ended: Any) -> ProgramResult:
    flags = {"timed_out": False, "output_exceeded": False, "excess": None} | ended
    return ProgramResult(exit_code=exit_code, stdout=stdout, stderr=stderr, seconds=0.0, **flags)


@pytest.mark.parametrize(
    ("result", "status", "cause", "first", "streams"),
    [
        (_result(stdout="7\n"), "ok", "", "[executed, exit code 0]", ["stdout"]),
        (_result(stdout="7", stderr="warning"), "ok", "", "[executed, exit code 0]", ["stdout", "stderr"]),
        (_result(), "empty", "", None, []),
        (_result(2, stderr="bad"), "error", "exit_2", "[failed, exit code 2]", ["stderr"]),
        (_result(1, stdout="so far"), "error", "exit_1", "[failed, exit code 1]", ["stdout"]),
        (
            _result(1, "so far", "ValueError"),
            "error",
            "exit_1",
            "[failed with mixed output, exit code 1]",
            ["stdout", "stderr"],
        ),
        (_result(139), "error", "signal_11", None, []),
        (_result(152, "so far"), "timeout", "time", None, ["stdout"]),
        (_result(None, "so far", timed_out=True), "timeout", "time", None, ["stdout"]),
        (_result(None, excess="memory"), "error", "memory", None, []),
        (_result(None, excess="files"), "error", "files", None, []),
        (_result(None, "xx", output_exceeded=True), "error", "output", None, ["stdout"]),
    ],
)
def test_observation_names_the_ending_and_holds_each_stream(
    result: ProgramResult, status: str, cause: str, first: str | None, streams: list[str]
) -> None:
    found = describe(result, 7.0)
    assert found[:2] == (status, cause)
    lines = found[2].split("\n")
    assert lines[0].startswith("[")
    assert lines[0].endswith("]")
    assert first is None or lines[0] == first
    assert [line[4:-4] for line in lines if line in ("--- stdout ---", "--- stderr ---")] == streams


def test_long_observation_keeps_both_ends() -> None:
    text = describe(_result(1, "a" * 5000, "b" * 5000), 7.0)[2]
    cut = clip(text, 1536)
    assert len(cut) <= 1536
    assert cut.startswith("[failed with mixed output, exit code 1]\n--- stdout ---\naaa")
    assert cut.endswith("bbb\n--- end of stderr ---")
