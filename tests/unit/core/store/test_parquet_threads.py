"""Threads of Arrow that hold a Python file when the interpreter ends abort the process, so none are used to read."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[4]
READS = {"iter_batches", "read_row_group", "read_row_groups", "read_table"}


def reads_parquet(function: ast.Attribute) -> bool:
    """Return whether a method reads parquet: by its name, or `read` of a file opened in the same expression."""
    return function.attr in READS or (function.attr == "read" and "ParquetFile(" in ast.unparse(function.value))


def test_no_read_of_parquet_uses_threads() -> None:
    reads = [
        (path, call)
        for folder in sorted({path.parent for path in ROOT.glob("*/__init__.py")})
        if folder.name not in ("tests", "benchmarks", "typings")
        for path in folder.rglob("*.py")
        if any(word in (source := path.read_text()) for word in (*READS, "ParquetFile("))
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and reads_parquet(call.func)
    ]
    assert len(reads) > 10
    for path, call in reads:
        given = {one.arg: ast.unparse(one.value) for one in call.keywords}
        assert given.get("use_threads") == "False", f"{path}:{call.lineno}"
