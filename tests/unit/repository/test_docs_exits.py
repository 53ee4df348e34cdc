"""docs/behaviour/exits.md matches the code: its messages are ours, and the tests that it names expect them.

That each row is produced is what these tests show when they run; here only their text is read.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from treadle.core import errors
from treadle.core.errors import StageFailed
from treadle.stages.registry import stage_names

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/behaviour/exits.md"
_ROW = re.compile(r"\| (?P<stages>[^|]+) \| `(?P<message>[^`]+)` \| (?P<note>[^|]*)\| `(?P<test>[^`]+)` \|")
TROUBLES = ROOT / "docs/guides/troubleshooting.md"
_REFUSAL_KINDS = ("StageFailed", *(error.__name__ for error in StageFailed.__subclasses__()))
_CODE = (
    "agent",
    "core",
    "datagen",
    "environments",
    "eval",
    "formats",
    "report",
    "retriever",
    "rl",
    "sft",
    "tasks",
    "web",
)


class Exit(NamedTuple):
    stages: list[str]
    message: str
    exit_code: int
    test: str


def exits() -> list[Exit]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")][1:]
    rows = [_ROW.fullmatch(line) for line in lines]
    assert all(rows), [line for line, row in zip(lines, rows, strict=True) if row is None]
    return [
        Exit(re.findall(r"\w+", row["stages"]), row["message"], 2 if "exit code 2" in row["note"] else 1, row["test"])
        for row in rows
        if row
    ]


@cache
def texts() -> list[str]:
    """Every text in the code, with `…` for what is filled in."""
    found = []
    for folder in _CODE:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.JoinedStr):
                    parts = [str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values]
                    found.append("".join(parts))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return found


def unsaid(message: str) -> list[str]:
    """Return the parts of a message that no text in the code has."""
    parts = [part.strip(" ();:,") for part in message.split("…")]
    return [part for part in parts if len(part) > 3 and not any(part in text for text in texts())]


class Refusal(NamedTuple):
    place: str
    text: str
    """With `…` for what is filled in; texts that were put together in the same function are written out."""


@cache
def refusals() -> list[Refusal]:
    """Every `raise` of StageFailed, or of an error that is one, in the code."""
    found = []
    for folder in _CODE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text()
            if not any(f"raise {name}" in text for name in _REFUSAL_KINDS):
                continue
            for function in ast.walk(ast.parse(text)):
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    found += [Refusal(f"{path.relative_to(ROOT)}:{line}", text) for line, text in _raised(function)]
    return found


def _raised(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[int, str]]:
    texts: dict[str, str] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            texts[node.targets[0].id] = _text(node.value, {})
    for node in ast.walk(function):
        if (
            isinstance(node, ast.Raise)
            and isinstance(node.exc, ast.Call)
            and ast.unparse(node.exc.func) in _REFUSAL_KINDS
        ):
            yield node.lineno, _text(node.exc.args[0], texts)


def _text(node: ast.expr, texts: Mapping[str, str]) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, texts) for part in node.values)
    if isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Name):
        return texts.get(node.value.id, "…")
    return str(node.value) if isinstance(node, ast.Constant) else "…"


def told(refusal: Refusal, rows: Sequence[Exit]) -> bool:
    """Return whether a row has this refusal's message: its words, in order, from the first on."""
    for row in rows:
        words = ".*".join(map(re.escape, row.message.split("…")))
        if re.match(words, refusal.text):
            return True
    return False


def test_every_refusal_in_the_code_is_in_the_table() -> None:
    assert len(refusals()) > 30
    assert [refusal for refusal in refusals() if not told(refusal, exits())] == []


def test_refusal_without_a_row_is_found() -> None:
    without = [row for row in exits() if "has no quota" not in row.message]
    untold = [refusal.place.partition(":")[0] for refusal in refusals() if not told(refusal, without)]
    assert untold == ["rl/selection/choice.py"]


def test_outage_rows_use_messages_from_the_code() -> None:
    lines = [line for line in TROUBLES.read_text().splitlines() if line.startswith("| ")]
    told = [message for line in lines for message in re.findall("`([^`]+)`", line.split(" | ")[0])]
    assert len(told) > 10 and not [part for message in told for part in unsaid(message)]


def test_every_stage_has_an_exit() -> None:
    named = {stage for row in exits() for stage in row.stages}
    assert named == {*stage_names(), "all"}


class Expected(NamedTuple):
    """What a test expects to be raised."""

    exit_codes: set[int]
    texts: list[str]


def expected(test: str) -> Expected:
    """Return the exit codes of the errors that a test expects, and the texts of the test and of what it uses."""
    path, _, name = test.partition("::")
    top: dict[str, ast.stmt] = {}
    for node in ast.parse((ROOT / "tests" / path).read_bytes()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            top[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            top[node.targets[0].id] = node
    assert name in top, test
    raised = [
        ast.unparse(node.args[0])
        for node in ast.walk(top[name])
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.raises"
    ]
    used, waiting, texts = set[str](), [name], list[str]()
    while waiting:
        if (one := waiting.pop()) in used or one not in top:
            continue
        used.add(one)
        for node in ast.walk(top[one]):
            if isinstance(node, ast.Name):
                waiting.append(node.id)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value.replace("\\", ""))
    return Expected({getattr(errors, one).exit_code for one in raised}, texts)


def expects(row: Exit, test: Expected) -> bool:
    """Return whether a test expects a row's exit code and a part of its message: ten characters, or all of it."""
    parts = [part.strip(" ();:,") for part in row.message.split("…")]
    enough = min(10, max(map(len, parts)))
    return row.exit_code in test.exit_codes and any(
        SequenceMatcher(None, part, text, autojunk=False).find_longest_match().size >= enough
        for part in parts
        for text in test.texts
    )


def test_row_that_its_test_does_not_expect_is_found() -> None:
    row = next(row for row in exits() if row.message.endswith("has no score"))
    test = expected(row.test)
    assert expects(row, test)
    assert not expects(row._replace(exit_code=2), test)
    assert not expects(row._replace(message="rollout … lacks its verdict"), test)


@pytest.mark.parametrize("row", exits(), ids=lambda row: row.message[:40])
def test_documented_message_is_in_the_code_and_expected_by_its_test(row: Exit) -> None:
    assert not unsaid(row.message)
    assert expects(row, expected(row.test)), row.test
