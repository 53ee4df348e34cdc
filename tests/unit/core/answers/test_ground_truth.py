"""Ground truth in rows for verl: every published form is decoded, and what Treadle encodes is read back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.core.answers.ground_truth import BadGroundTruth, GroundTruth, decode, encode

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@pytest.mark.parametrize(
    ("value", "answers"),
    [
        ({"target": ["a", "b"], "question": "Q?"}, ("a", "b")),
        ('{"target": ["a", "b"], "question": "Q?"}', ("a", "b")),
        ({"target": "a"}, ("a",)),
        (["a", "b"], ("a", "b")),
        ('["a", "b"]', ("a", "b")),
        ("34", ("34",)),
        (34, (34,)),
        ("[0, 1]", ("[0, 1]",)),
        ("{1, 2}", ("{1, 2}",)),
        ('{"x": 1}', ('{"x": 1}',)),
        ("{" * 5_000, ("{" * 5_000,)),
        (None, ()),
    ],
)
def test_answers_in_every_form(value: Any, answers: tuple[Any, ...]) -> None:
    assert decode(value).answers == answers


@pytest.mark.parametrize(
    "tests",
    [
        {"stdin": ["1 2"], "expected_output": ["3"], "question_id": "abc301_a"},
        {"functional": "[]", "question_id": "3402"},
        {"inputs": ["1 2"], "outputs": ["3"], "fn_name": "add"},
        {"import_prefix": "import math", "test_code": "assert f(1) == 2", "entry_point": "f"},
    ],
)
def test_tests_of_programs_in_every_form(tests: dict[str, Any]) -> None:
    columns = dict.fromkeys(("stdin", "functional", "inputs", "test_code", "target_of_other_rows"))
    for value in (tests, json.dumps(tests), {**columns, **tests}):
        found = decode(value)
        assert (found.tests, found.answers, found.question_id) == (tests, (), tests.get("question_id", ""))


@pytest.mark.parametrize("value", [{"x": 1}, {}, {"stdin": ["1", "2"], "expected_output": ["3"]}, {"inputs": ["1"]}])
def test_other_objects_are_refused(value: dict[str, Any]) -> None:
    with pytest.raises(BadGroundTruth):
        decode(value)


@given(st.lists(TEXT, max_size=4), TEXT)
def test_encoded_answers_are_read_back(answers: list[str], question: str) -> None:
    truth = GroundTruth(tuple(answers), question)
    assert decode(encode(truth)) == truth


@given(
    st.one_of(
        TEXT, st.recursive(st.none() | st.integers() | TEXT, lambda part: st.lists(part) | st.dictionaries(TEXT, part))
    )
)
def test_any_json_is_decoded_or_refused(value: Any) -> None:
    try:
        decode(json.dumps(value))
        decode(value)
    except BadGroundTruth:
        assert isinstance(value, dict)
