"""Every acceptance item of the specifications that Treadle implements is marked on a test."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
NUM_ITEMS = {"flywheel": 32, "pareto": 34, "evaluation": 30, "planning": 30, "sweet": 30}
UNDER_WAY = {"service": 30}
"""Specifications of which a part is implemented: their items may be marked, and need not be yet."""
ALWAYS_RUN = ("unit", "stages", "flows")
"""Folders whose tests need nothing that a machine may lack."""
WITH_ENGINES = frozenset({"sweet-26", "sweet-27"})
"""Items about the trainer itself, which tests in `e2e` show; CI runs them, too."""
OPTIONAL = ("skip", "sweep")
"""Marks of tests that CI may leave out."""


def marked(source: bytes) -> Iterator[str]:
    """Return the arguments of every `covers` on a test that always runs."""
    tree = ast.parse(source)
    skipped = {name for name, value in _assigned(tree) if _mark(value).startswith("skip")}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            marks = [(_mark(decorator), decorator) for decorator in node.decorator_list]
            names = {decorator.id for _, decorator in marks if isinstance(decorator, ast.Name)}
            if (
                names & skipped
                or "pytestmark" in skipped
                or any(mark.startswith(("skip", "sweep")) for mark, _ in marks)
            ):
                continue
            for mark, decorator in marks:
                if mark == "covers" and isinstance(decorator, ast.Call):
                    yield from (str(ast.literal_eval(argument)) for argument in decorator.args)


def _items(folders: Iterable[str]) -> set[str]:
    files = (path.read_bytes() for folder in folders for path in (TESTS / folder).rglob("test_*.py"))
    return {item for source in files if b"covers(" in source for item in marked(source)}


def _assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in tree.body:
        if isinstance(node, ast.Assign):
            yield from ((target.id, node.value) for target in node.targets if isinstance(target, ast.Name))


def _mark(node: ast.expr) -> str:
    """`covers` of `pytest.mark.covers(...)`; empty for anything else."""
    called = node.func if isinstance(node, ast.Call) else node
    return called.attr if isinstance(called, ast.Attribute) and ast.unparse(called.value) == "pytest.mark" else ""


def test_every_acceptance_item_is_covered_by_a_test_that_always_runs() -> None:
    asked = {f"{name}-{number}" for name, count in NUM_ITEMS.items() for number in range(1, count + 1)}
    found = _items(ALWAYS_RUN) | _items(("e2e",)) & WITH_ENGINES
    assert sorted(asked - found) == [], "no test shows these items"
    known = asked | {f"{name}-{number}" for name, count in UNDER_WAY.items() for number in range(1, count + 1)}
    assert sorted(found - known) == [], "no specification has these items"


def test_a_mark_on_a_skippable_test_does_not_count() -> None:
    skips = b"import pytest\nneeds = pytest.mark.skipif(True, reason='x')\n"
    mark = b"@pytest.mark.covers('a-1')\n"
    assert list(marked(mark + b"def test_it(): ...")) == ["a-1"]
    assert list(marked(mark + b"def helper(): ...")) == []
    assert list(marked(skips + mark + b"@needs\ndef test_it(): ...")) == []
    assert list(marked(mark + b"@pytest.mark.skip\nasync def test_it(): ...")) == []
    assert list(marked(mark + b"@pytest.mark.sweep\ndef test_it(): ...")) == []
    assert list(marked(b"pytestmark = pytest.mark.skipif(True, reason='x')\n" + mark + b"def test_it(): ...")) == []
