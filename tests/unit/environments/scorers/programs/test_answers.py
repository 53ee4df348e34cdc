"""The program in an answer: fenced, bare, with text around it, or as the published program takes it."""

from __future__ import annotations

import pytest

from treadle.agent.dialects.base import Segment
from treadle.environments.colbench.dialect import ColbenchDialect
from treadle.environments.scorers.programs.answers import answer_of, find_legacy_program, find_program
from treadle.environments.stored_rollout import StoredRollout

CODE = "def f(x):\n    return x\n"


def stored(*parts: tuple[str, str], status: str = "answered") -> StoredRollout:
    return StoredRollout(status, False, [Segment(kind, text, 0, 0) for kind, text in parts], (), (), None, None)


@pytest.mark.parametrize(
    "answer",
    [
        CODE,
        f"```python\n{CODE}```",
        f"```\n{CODE}```",
        f"Here it is:\n```py\n{CODE}```\nIt returns x.",
        f"```python\nprint(f(1))\n```\n```python\n{CODE}```",
        f"```python\ndef f(x):\n    return None\n```\nBetter:\n```python\n{CODE}```",
        f"```python\n{CODE}```\n```python\nf(1)\n```",
        f"Here it is:\n\n{CODE}\nThis returns what you need.",
        f"```text\nf returns x\n```\n```python3\n{CODE}```",
    ],
)
def test_program_is_found_wherever_it_is(answer: str) -> None:
    scope: dict[str, object] = {}
    exec(find_program(answer, "f"), scope)
    assert callable(scope["f"]) and scope["f"](3) == 3


def test_blocks_without_the_function_are_one_program() -> None:
    assert (
        find_program("```python\nimport math\n```\n```python\ng = math.sqrt\n```", "f")
        == "import math\n\ng = math.sqrt\n"
    )


@pytest.mark.parametrize(
    ("answer", "program"),
    [
        ("\ncode1 ", "\ncode1 "),
        ("a```python\nx\n```b```python\ny\n```", "\nx\n"),
        ("a```\nx\n```b", "\nx\n"),
        ("```py\nx\n```", "py\nx\n"),
        ("x  # import os", None),
        ("from sys import path", None),
        ("the_exit(1)", None),
        ("quit(", None),
    ],
)
def test_legacy_takes_the_first_block_and_refuses_texts(answer: str, program: str | None) -> None:
    assert find_legacy_program(answer) == program


def test_answer_is_the_marked_one_or_the_last_turn_of_a_full_dialogue() -> None:
    marked = [(one.kind, one.text) for one in ColbenchDialect().segments("hm OUTPUT: ok I WANT TO ANSWER: c")]
    assert answer_of(stored(("text", "What?"), ("user", "x"), *marked)) == " c"
    assert answer_of(stored(("answer", "<answer>\nc\n</answer>"))) == "\nc\n"
    assert (
        answer_of(stored(("answer", "I WANT TO ANSWER: a"), ("user", "x"), ("answer", "I WANT TO ANSWER: b"))) == " b"
    )
    turns = (("text", "What?"), ("frame", ""), ("user", "x"), ("private", "hm OUTPUT:"), ("text", " c"))
    assert answer_of(stored(*turns, status="max_turns")) == " c"
    assert answer_of(stored(*turns, status="context_full")) is None
