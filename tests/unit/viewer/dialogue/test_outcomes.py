"""Outcomes of tests from the column `detail`, which any scorer may fill."""

from __future__ import annotations

import json
from typing import Any

import pytest

from treadle.viewer.dialogue.outcomes import ShownTest, shown_tests


def test_failed_tests_come_first() -> None:
    rows = [
        {"name": "a", "call": "f(1)", "passed": True, "expected": "1", "got": "1", "error": None},
        {"name": "b", "call": "f(2)", "passed": False, "expected": "2", "got": None, "error": "TypeError: x"},
    ]
    assert shown_tests({"detail": json.dumps(rows)}) == [
        ShownTest("b", False, "TypeError: x", "", "f(2)", "2"),
        ShownTest("a", True, "", "1", "f(1)", "1"),
    ]


@pytest.mark.parametrize("detail", [None, "", "3", "{}", '["a"]', '[{"name": 1, "passed": true}]', '[{"name": "a"}]'])
def test_other_details_are_no_tests(detail: str | None) -> None:
    score: dict[str, Any] | None = {"detail": detail}
    assert shown_tests(score) == [] == shown_tests(None)
