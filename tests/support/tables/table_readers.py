"""Read a folder of parquet files with every library that the guides name, and compare with Treadle's own rows."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Row = Mapping[str, Any]


def assert_all_read(folder: Path, rows: Sequence[Row], cache: Path) -> None:
    """Check that every library finds exactly these rows, in their order, in a data set folder."""
    expected = [_plain(row) for row in rows]
    for library, read in _readers(cache).items():
        if library == "datasets" and not rows:
            continue  # of a file without rows it makes no data set
        found = [_plain(row) for row in read(folder)]
        assert len(found) == len(expected), f"{library}: {folder}"
        for place, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert one == other, f"{library}: {folder}, row {place + 1}: {one} and {other}"


def assert_all_count(folder: Path, num_rows: int, cache: Path) -> None:
    """Check that every library opens a data set folder, with the same rows in all."""
    found = {library: [_plain(row) for row in read(folder)] for library, read in _readers(cache).items()}
    assert {library: len(rows) for library, rows in found.items()} == dict.fromkeys(found, num_rows)
    assert all(rows == found["polars"] for rows in found.values()), folder


def assert_json_read(file: Path, num_rows: int, cache: Path, *, is_data_set: bool) -> None:
    """Check that every library opens a file of JSON Lines, or of one array; `datasets` also its folder if it is one."""
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    duckdb, datasets = pytest.importorskip("duckdb"), pytest.importorskip("datasets")
    is_lines = file.suffix == ".jsonl"
    found = {
        "pandas": len(pandas.read_json(file, lines=is_lines)),
        "polars": len(polars.read_ndjson(file) if is_lines else polars.read_json(file)),
        "duckdb": len(duckdb.read_json(str(file)).fetchall()),
        "datasets": len(datasets.load_dataset("json", data_files=str(file), split="train", cache_dir=str(cache))),
    }
    if is_data_set:
        found["folder"] = len(datasets.load_dataset(str(file.parent), split="train", cache_dir=str(cache)))
    assert found == dict.fromkeys(found, num_rows)


def _readers(cache: Path) -> Mapping[str, Callable[[Path], list[dict[str, Any]]]]:
    return {
        "pandas": _pandas, "polars": _polars, "duckdb": _duckdb, "datasets": lambda place: _datasets(place, cache),
    }  # fmt: skip


def _pandas(folder: Path) -> list[dict[str, Any]]:
    pandas = pytest.importorskip("pandas")
    found: list[dict[str, Any]] = pandas.read_parquet(folder / "data").to_dict("records")
    return found


def _polars(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pytest.importorskip("polars").read_parquet(folder / "data").to_dicts()
    return found


def _duckdb(folder: Path) -> list[dict[str, Any]]:
    relation = pytest.importorskip("duckdb").sql(f"from '{folder}/data/*.parquet'")
    return [dict(zip(relation.columns, row, strict=True)) for row in relation.fetchall()]


def _datasets(folder: Path, cache: Path) -> list[dict[str, Any]]:
    datasets = pytest.importorskip("datasets")
    return list(datasets.load_dataset(str(folder), split="train", cache_dir=str(cache)))


def _plain(value: Any) -> Any:
    """Return a value as plain Python: lists for arrays, None for what pandas makes of nulls."""
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_plain(inner) for inner in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if value is None or (isinstance(value, float) and math.isnan(value)) or str(value) == "<NA>":
        return None
    return value


def says_the_same(parsed: Any, stored: Any) -> bool:
    """Return whether a value of a column of lists and structs says what the stored JSON says, nothing left out."""
    if isinstance(parsed, str) and isinstance(stored, (dict, list)):
        return bool(json.loads(parsed) == stored)
    if isinstance(stored, dict) and isinstance(parsed, list):
        named = [(list(item.values())[0], dict(list(item.items())[1:])) for item in parsed]
        return [name for name, _ in named] == list(stored) and all(
            says_the_same(rest if isinstance(stored[name], dict) else next(iter(rest.values())), stored[name])
            for name, rest in named
        )
    if isinstance(stored, dict):
        return stored.keys() <= parsed.keys() and all(
            says_the_same(inner, stored.get(name)) for name, inner in parsed.items()
        )
    if isinstance(stored, list):
        return len(parsed) == len(stored) and all(map(says_the_same, parsed, stored))
    return bool(parsed == stored)
