"""Guides import Treadle's interfaces from `treadle.api` alone, and only names that it exports."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from treadle import api

ROOT = Path(__file__).parents[3]
PAGES = (
    ROOT / "README.md",
    *sorted((ROOT / "docs/guides").glob("*.md")),
    *sorted((ROOT / "docs/concepts").glob("*.md")),
)
_IMPORT = re.compile(r"^[ \t>]*(from treadle\b.*|import treadle\b.*)$", re.M)
_ALLOWED = re.compile(r"from treadle\.api import (?:\(([^)]*)\)|([^\n#(]*))")


def imports_of(text: str) -> list[str]:
    """Return the import lines of Treadle in a page, those over several lines as one."""
    lines = []
    for found in _IMPORT.finditer(text):
        start = found.start(1)
        end = text.index(")", start) + 1 if found[1].rstrip().endswith("(") else found.end(1)
        lines.append(text[start:end])
    return lines


def strange_names(line: str) -> set[str]:
    """Return what an import takes that `treadle.api` does not export; the whole line if it imports anything else."""
    allowed = _ALLOWED.match(line)
    if allowed is None:
        return {line}
    names = (allowed[1] or allowed[2]).replace("\n", " ").split(",")
    return {name.strip().partition(" as ")[0] for name in names if name.strip()} - set(api.__all__)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_imports_only_what_the_api_exports(page: Path) -> None:
    found = [name for line in imports_of(page.read_text(encoding="utf-8")) for name in strange_names(line)]
    assert found == []


def test_guides_import_the_api() -> None:
    assert sum(len(imports_of(page.read_text(encoding="utf-8"))) for page in PAGES) >= 10


def test_other_imports_are_found() -> None:
    text = "```python\nfrom treadle.api import (\n    Task,\n    Nothing,\n)\n"
    text += "  from treadle.core import x\nimport treadle\n```"
    assert [strange_names(line) for line in imports_of(text)] == [
        {"Nothing"},
        {"from treadle.core import x"},
        {"import treadle"},
    ]


def test_every_exported_name_exists() -> None:
    assert [name for name in api.__all__ if not hasattr(api, name)] == []
