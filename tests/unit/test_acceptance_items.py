"""Every acceptance item of the specifications that Treadle implements is shown by a test, and says so."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
NUM_ITEMS = {"flywheel": 32, "pareto": 34, "evaluation": 30}


def marked() -> Iterator[str]:
    """The arguments of every `covers` in the tests."""
    for path in TESTS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "covers":
                yield from (str(ast.literal_eval(argument)) for argument in node.args)


def test_every_acceptance_item_is_marked_on_a_test() -> None:
    asked = {f"{name}-{number}" for name, count in NUM_ITEMS.items() for number in range(1, count + 1)}
    found = set(marked())
    assert sorted(asked - found) == [], "no test shows these items"
    assert sorted(found - asked) == [], "no specification has these items"
