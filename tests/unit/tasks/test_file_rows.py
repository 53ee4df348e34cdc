"""Rows of question files are counted before a run, within limits."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from treadle.datagen.questions.sources import SourceSettings
from treadle.tasks.estimate import file_rows
from treadle.tasks.estimate.file_rows import rows_of

CONTENT = {
    "q.jsonl": b'{"question": "a"}\n\n{"question": "b"}\n{"question": "c"}',
    "q.json": b'[{"question": "a"}, {"question": "b"}, {"question": "c"}]',
    "q.csv": b'question,answer\na,1\n"b\nb",2\nc,3\n',
}


def source(folder: Path, name: str, limit: int | None = None) -> SourceSettings:
    file = folder / name
    if name == "q.parquet":
        pq.write_table(pa.table({"question": ["a", "b", "c"]}), file)
    else:
        file.write_bytes(CONTENT[name])
    return SourceSettings(path=file, domain="qa", limit=limit)


@pytest.mark.parametrize("name", [*CONTENT, "q.parquet"])
def test_rows_of_every_format_are_counted_up_to_the_limit(tmp_path: Path, name: str) -> None:
    for limit, expected in ((None, 3), (2, 2), (5, 3)):
        counted = rows_of(source(tmp_path, name, limit))
        assert counted is not None and (counted.num_rows, counted.is_complete) == (expected, True)


def test_count_of_a_large_file_is_a_lower_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_rows, "MAX_ROWS", 2)
    counted = rows_of(source(tmp_path, "q.csv"))
    assert counted is not None and (counted.num_rows, counted.is_complete) == (2, False)
    limited = rows_of(source(tmp_path, "q.csv", limit=1))
    assert limited is not None and (limited.num_rows, limited.is_complete) == (1, True)
    monkeypatch.setattr(file_rows, "MAX_BYTES", 1)
    large = rows_of(source(tmp_path, "q.json"))
    assert large is not None and (large.num_rows, large.is_complete) == (0, False)


def test_missing_and_unreadable_files_are_left_to_the_stage(tmp_path: Path) -> None:
    (tmp_path / "q.txt").write_text("x")
    assert rows_of(SourceSettings(path=tmp_path / "q.txt")) is None
    assert rows_of(SourceSettings(path=tmp_path / "gone.jsonl")) is None
    assert rows_of(SourceSettings(hub="org/name")) is None
