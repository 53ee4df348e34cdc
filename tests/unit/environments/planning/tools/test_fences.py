"""Fenced blocks in the text of a model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.environments.planning.tools.fences import find_fences, has_python_fence


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("```py\nx\n```", [("py", "x\n")]),
        ("```python\nx\n\n```\n\n```sh\n3\n4\n```\n", [("python", "x\n\n"), ("sh", "3\n4\n")]),
        ("so:\n  ```Python title\nx\n  ```", [("python", "x\n")]),
        ("````py\n```\n````", [("py", "```\n")]),
        ("```py\nx\n```` ", [("py", "x\n")]),
        ("```\r\nx\r\n```\r\n", [("", "x\r\n")]),
        ("```py\n```", [("py", "")]),
        ("```py\nx = '```'\n```", [("py", "x = '```'\n")]),
        ("    ```py\nx", []),
        ("```1+1```", []),
        ("``py\nx\n``", []),
        ("", []),
    ],
)
def test_blocks_are_those_of_commonmark(text: str, found: list[tuple[str, str]]) -> None:
    assert [(fence.language, fence.text) for fence in find_fences(text)] == found


def test_block_without_an_end_goes_to_the_end_of_the_text() -> None:
    (fence,) = find_fences("a\n```py\nx\n y")
    assert (fence.language, fence.text, fence.is_closed) == ("py", "x\n y", False)


@given(
    st.lists(st.sampled_from(["```", "```py\n", "````\n", "\n", "\r\n", "a", " ", "\u2028", "```\n", "`"]), max_size=40)
)
def test_blocks_lie_apart_and_in_order_in_any_text(parts: list[str]) -> None:
    text = "".join(parts)
    end = 0
    for fence in find_fences(text):
        assert end <= fence.start < fence.end <= len(text)
        assert fence.text in text[fence.start : fence.end]
        assert text[fence.start : fence.end].lstrip(" ").startswith("```")
        end = fence.end


@pytest.mark.parametrize(
    ("text", "has_one"),
    [("```py\nx\n```", True), ("```python\n```", True), ("```py\nx", False), ("x", False), ("```\nx\n```", False)],
)
def test_only_a_closed_python_block_counts_as_fenced(text: str, has_one: bool) -> None:
    assert has_python_fence(text) is has_one
