"""Tests of programming tasks: how payloads are read, and what counts as the same output."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.agent.dialects.base import Segment
from treadle.agent.tools.workspace.files import BadTask
from treadle.environments.scorers.program_tests import AssertionTest, CallTest, StdinTest, read_tests, same_output
from treadle.environments.scorers.stdin_tests import answered_program, calls_are_fenced
from treadle.environments.stored_rollout import StoredRollout

CHECK = "def check(candidate):\n\n    assert candidate(1) == 2\n    assert candidate(2) == 3\n"


@pytest.mark.parametrize(
    ("tests", "found"),
    [
        ({"stdin": ["1"], "expected_output": ["2"], "question_id": "x"}, [StdinTest("1", "2")]),
        ({"inputs": ["1", "2"], "outputs": ["3", "4"]}, [StdinTest("1", "3"), StdinTest("2", "4")]),
        ({"inputs": ["1"], "outputs": ["3"], "fn_name": None}, [StdinTest("1", "3")]),
        ({"inputs": [["1", "2"]], "outputs": [["3"]]}, [StdinTest("1\n2", "3")]),
        ({"inputs": [[1, [2]]], "outputs": [3], "fn_name": "f"}, [CallTest("f", [1, [2]], 3)]),
        ({"inputs": ["1\n[2]\n"], "outputs": ["[3]"], "fn_name": "f"}, [CallTest("f", [1, [2]], [3])]),
        (
            {"import_prefix": "", "test_code": CHECK, "entry_point": "f"},
            [AssertionTest("", CHECK, "f", 0, 2), AssertionTest("", CHECK, "f", 1, 2)],
        ),
        (json.dumps({"stdin": [""], "expected_output": ["2"]}), [StdinTest("", "2")]),
    ],
)
def test_every_published_form_is_read(tests: object, found: list[Any]) -> None:
    assert read_tests({"tests": tests}) == found


@pytest.mark.parametrize(
    "tests",
    [
        None,
        "{",
        "[" * 100_000,
        [],
        {},
        {"functional": "[]", "question_id": "x"},
        {"stdin": [], "expected_output": []},
        {"stdin": ["secret"], "expected_output": []},
        {"stdin": ["secret"], "expected_output": [1]},
        {"stdin": ["x"], "expected_output": ["secret" * 100_000]},
        {"inputs": ["secret"], "outputs": ["1"], "fn_name": "f"},
        {"inputs": [{"secret": 1}], "outputs": ["1"], "fn_name": "f"},
        {"inputs": [[1]], "outputs": [1], "fn_name": "f()"},
        {"test_code": "assert secret", "entry_point": "f"},
        {"test_code": CHECK, "entry_point": " "},
    ],
)
def test_payload_that_cannot_be_used_is_refused_without_quoting_it(tests: object) -> None:
    with pytest.raises(BadTask) as caught:
        read_tests({"tests": tests})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("printed", "expected", "same"),
    [
        ("1\n2\n", "1\n2", True),
        (" 1 \n2", "1\n2\n\n", True),
        ("1.0 2e0", "1 2", True),
        ("0.1", "0.10000000000000001", False),
        ("YES 1.50", "YES 1.5", True),
        ("1\n\n2", "1\n2", False),
        ("1 2", "1\n2", False),
        ("yes", "YES", False),
        ("nan", "nan", True),
        ("nan", "NaN", False),
        ("1_0", "10", False),
        ("\u0661", "1", False),
        ("1e9999", "1e9999 ", True),
        ("", "", True),
        ("", "0", False),
    ],
)
def test_outputs_are_compared_by_lines_and_numbers_as_decimals(printed: str, expected: str, same: bool) -> None:
    assert same_output(printed, expected) is same
    assert same_output(expected, printed) is same


@given(st.text(max_size=50), st.decimals(allow_nan=False, allow_infinity=False, places=3), st.integers(0, 5))
def test_any_output_equals_itself_and_numbers_with_more_zeros(text: str, number: Any, zeros: int) -> None:
    assert same_output(text, text)
    assert same_output(f"{text}\n{number}{'0' * zeros}", f"{text}\n{number}\n")


@pytest.mark.parametrize(
    ("printed", "expected", "passed"),
    [
        ("\ntreadle-result:5\n", 5, True),
        ("noise\ntreadle-result:[5]\n", [5], True),
        ("\ntreadle-result:5\n", [5], True),
        ("\ntreadle-result:[5]\n", 5, False),
        ("\ntreadle-result:1\n", True, False),
        ("\ntreadle-result:[true]\n", [1], False),
        ("\ntreadle-result:5\n\ntreadle-result:6\n", 6, True),
        ("\ntreadle-result:{\n", 5, False),
        (f"\ntreadle-result:{'[' * 100_000}\n", 5, False),
        (f"\ntreadle-result:{'9' * 5000}\n", 5, False),
        ("5", 5, False),
        ("", None, False),
        ("\ntreadle-result:null\n", None, True),
    ],
)
def test_result_of_a_call_is_compared_as_a_value(printed: str, expected: object, passed: bool) -> None:
    assert CallTest("f", [], expected).is_passed(printed) is passed


def _rollout(*segments: tuple[str, str]) -> StoredRollout:
    return StoredRollout("answered", False, [Segment(kind, text, 0, 0) for kind, text in segments], (), (), None, None)


@pytest.mark.parametrize(
    ("segments", "program"),
    [
        ([("answer", "<answer>\n```py\nx\n```\n</answer>")], "x\n"),
        ([("answer", "<answer>```python\nx\n```</answer>")], "x\n"),
        ([("answer", "<answer>```py\nx\n```\nor\n```py\ny\n```</answer>")], "y\n"),
        ([("answer", "<answer>```py\nx\n```</answer>"), ("answer", "<answer>```py\ny\n```</answer>")], "y\n"),
        ([("answer", "<answer>```py\nx\n```</answer>"), ("answer", "<answer>y</answer>")], None),
        ([("answer", "<answer>```py\nx</answer>")], None),
        ([("result", "<answer>```py\nx\n```</answer>")], None),
        ([], None),
    ],
)
def test_program_is_the_last_python_block_of_the_last_answer(
    segments: list[tuple[str, str]], program: str | None
) -> None:
    assert answered_program(_rollout(*segments)) == program


@pytest.mark.parametrize(
    ("bodies", "fenced"),
    [
        ([], True),
        (["<code>\n```py\nx\n```\n</code>"], True),
        (["<code>```py\nx\n```</code>", "<code>print(1)</code>"], False),
        (["<code>```py\nx"], False),
    ],
)
def test_each_call_of_code_must_be_in_a_python_block(bodies: list[str], fenced: bool) -> None:
    assert calls_are_fenced(_rollout(*(("code", body) for body in bodies))) is fenced
