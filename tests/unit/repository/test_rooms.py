"""The house: folders and imports of a module are as many as a reader can scan; no two modules import each other."""

from __future__ import annotations

import ast
import functools
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MOST_MODULES = 20
MOST_IMPORTS = 15
RECIPES = "treadle.stages.recipes."
"""Recipes name the stages of a flow, however many these are."""
PACKAGES: Mapping[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]


def modules() -> dict[str, Path]:
    """Return dotted name and path of the product's modules."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join((package, *(part for part in parts if part != "__init__")))] = path
    return found


def imported(source: str, known: Mapping[str, Path]) -> Iterator[str]:
    """Yield the modules that a source imports anywhere, lazily and for types as well."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                if whole in known:
                    yield whole
                elif node.module in known:
                    yield node.module


@functools.cache
def imports() -> dict[str, set[str]]:
    """Return the modules that each module of the product imports, itself left out."""
    known = modules()
    return {name: set(imported(path.read_text(), known)) - {name} for name, path in known.items()}


def check_circles(graph: Mapping[str, set[str]]) -> None:
    TopologicalSorter(graph).prepare()


def test_no_folder_has_more_than_twenty_modules() -> None:
    folders = [*PACKAGES.values(), "benchmarks", "tests"]
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py") if path.name != "__init__.py"]
    counts = Counter(str(path.parent.relative_to(ROOT)) for path in paths)
    assert {folder: count for folder, count in counts.items() if count > MOST_MODULES} == {}


def test_no_module_imports_more_than_fifteen_of_ours() -> None:
    counts = {name: len(own) for name, own in imports().items()}
    too_many = {name: count for name, count in counts.items() if count > MOST_IMPORTS and not name.startswith(RECIPES)}
    assert too_many == {}


def test_no_modules_import_each_other() -> None:
    assert sum(map(len, imports().values())) > 1000
    check_circles(imports())


def test_a_circle_is_found() -> None:
    known = {"treadle.a": ROOT, "treadle.b": ROOT}
    graph = {
        "treadle.a": set(imported("def f():\n    from treadle import b\n", known)),
        "treadle.b": set(imported("if TYPE_CHECKING:\n    from treadle.a import X\n", known)),
    }
    with pytest.raises(CycleError):
        check_circles(graph)
