"""Replies of models: a JSON object is read as a whole, or not at all."""

from __future__ import annotations

import pytest

from treadle.agent.judges.replies import json_object


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1}',
        ' {"a": 1}\n',
        '```json\n{"a": 1}\n```',
        '```\n{"a": 1}```',
        '<think>{"a": 2}</think>\n{"a": 1}',
        '<think>{"a": 2}</think>```json {"a": 1} ```',
    ],
)
def test_object_is_read_without_reasoning_and_fence(text: str) -> None:
    assert json_object(text) == {"a": 1}


@pytest.mark.parametrize(
    "text",
    ["", "null", "[1]", '"a"', '{"a": 1', 'It is {"a": 1}', '{"a": 1} {"a": 2}', '```json\n{"a": 1}\n``` so', "\ud800"],
)
def test_other_text_gives_an_empty_object(text: str) -> None:
    assert json_object(text) == {}
