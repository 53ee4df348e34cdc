"""Files of users are read row by row; a bad row or file is named with its place and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from treadle.core.errors import DataError
from treadle.core.untrusted.input_files import read_rows

Q = "question,answer\n"
FILES: list[tuple[str, str | bytes, list[Any]]] = [
    ("bom.csv", b"\xef\xbb\xbf" + Q.encode() + b"q,1\r\n", [(2, {"question": "q", "answer": "1"})]),
    ("quoted.csv", Q + '"a ""b"",\nc",1\nq,2\n', [(2, {"question": 'a "b",\nc', "answer": "1"}), (4, None)]),
    ("semicolons.csv", "question;answer\nWie, bitte?;4,5\n", [(2, {"question": "Wie, bitte?", "answer": "4,5"})]),
    ("tabs.tsv", "question\tanswer\nq\t1\n", [(2, {"question": "q", "answer": "1"})]),
    ("empty_rows.csv", Q + "\n,\nq,\n", [(4, {"question": "q", "answer": None})]),
    ("index.csv", "," + Q + "0,q,1\n", [(2, {"question": "q", "answer": "1"})]),
    ("lists.csv", Q + 'q,"[""a"", ""b""]"\nr,"[1, 2]"\n', [(2, {"question": "q", "answer": ["a", "b"]}), (3, None)]),
    ("cells.csv", Q + "q,1,2\nr,3\n", [(2, "bad_csv", "3 cells, but the header has 2"), (3, None)]),
    ("quote.csv", Q + '"a"b,1\nr,3\n', [(2, "bad_csv", "not valid CSV"), (3, None)]),
    ("open.csv", Q + '"a,1\nr,3\n', [(2, "bad_csv", "unexpected end of data")]),
    ("lines.json", '{"question": "q"}\n{"question": "r"}\n', [(1, {"question": "q"}), (2, None)]),
    ("list.json", '{\n "v": [1], "data": [\n{"q": 1}, 3]}', [(1, {"q": 1}), (2, "not_an_object", "int")]),
    ("one_line.json", '{"v": [1], "data": [{"q": 1}, {"q": 2}]}\n\n', [(1, {"q": 1}), (2, {"q": 2})]),
    ("row.json", '{"question": "q", "context": [{"t": 1}]}', [(1, {"question": "q", "context": [{"t": 1}]})]),
    ("row_in_lines.json", '{\n"Question": "q",\n"c": [{"t": 1}]}', [(1, {"Question": "q", "c": [{"t": 1}]})]),
    ("single.json", '{\n "question": "q",\n "answer": ["a"]}', [(1, {"question": "q", "answer": ["a"]})]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "expected"), FILES, ids=[file[0] for file in FILES])
def test_rows_and_their_problems(tmp_path: Path, name: str, content: str | bytes, expected: list[Any]) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    rows = list(read_rows(path))
    assert [row.number for row in rows] == [one[0] for one in expected]
    for row, (_, wanted, *words) in zip(rows, expected, strict=True):
        if words:
            assert row.value is None and row.reason == wanted and words[0] in row.detail
        elif wanted is not None:
            assert row.value == wanted


UNREADABLE = [
    ("latin.csv", (Q + "Müller,1\n").encode("latin-1"), "byte 0xfc in it is not UTF-8; save it as UTF-8"),
    ("excel.csv", Q.encode("utf-16"), "it is UTF-16; save it as UTF-8"),
    ("excel.jsonl", '{"question": "q"}\n'.encode("utf-16"), "is UTF-16; save it as UTF-8"),
    ("excel.json", '[{"question": "q"}]'.encode("utf-16"), "is UTF-16; save it as UTF-8"),
    ("rows.jsonl.gz", b"\x1f\x8b", "is packed (.gz); unpack it"),
    ("rows.xlsx", b"PK", "is a spreadsheet (.xlsx); save it as CSV"),
    ("rows", b"{}", "cannot be inferred from a name without suffix"),
    ("twice.csv", b"answer,answer\n1,2\n", "has the column 'answer' twice"),
    ("header.csv", Q.encode(), "has no rows"),
    ("empty.csv", b"", "has no rows"),
    ("lists.json", b'{\n"a": [{}], "b": [{}]}', "several lists of rows ('a', 'b')"),
]


@pytest.mark.parametrize(("name", "content", "words"), UNREADABLE, ids=[file[0] for file in UNREADABLE])
def test_unreadable_files_are_refused_in_one_line(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError) as error:
        list(read_rows(path))
    assert words in str(error.value) and name in str(error.value) and "\n" not in str(error.value)
