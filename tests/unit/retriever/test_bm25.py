"""Corpus and BM25 index: what is read, ranked, kept and refused."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from treadle.core.errors import DataError, StorageError
from treadle.retriever.config import IndexSettings
from treadle.retriever.corpus import Document, read_corpus
from treadle.retriever.folder import read_manifest
from treadle.retriever.index import Index
from treadle.retriever.index_identity import file_identity
from treadle.retriever.open_index import open_index


def write_corpus(path: Path, rows: Sequence[dict[str, Any] | bytes]) -> Path:
    path.write_bytes(b"".join((row if isinstance(row, bytes) else orjson.dumps(row)) + b"\n" for row in rows))
    return path


def opened(path: Path, **settings: Any) -> Index:
    return open_index(IndexSettings(corpus=(path,), cache_folder=path.parent / "cache", **settings))


def index_of(folder: Path, *texts: str) -> Index:
    rows = [{"id": number, "title": "", "text": text} for number, text in enumerate(texts)]
    return opened(write_corpus(folder / "corpus.jsonl", rows))


def found(index: Index, query: str, top_n: int = 5) -> list[str]:
    return [hit.id for hit in index.search(query, top_n)]


def test_both_layouts_and_all_formats_give_the_same_documents(tmp_path: Path) -> None:
    documents = [Document("0", "Vorna", "A town.\nIt is old."), Document("1", "", "No title")]
    apart = [{"id": 0, "title": "Vorna", "text": "A town.\nIt is old."}, {"id": "1", "title": None, "text": "No title"}]
    joined = [{"id": "0", "contents": "Vorna\nA town.\nIt is old.", "title": "x"}, {"id": 1, "contents": "No title"}]
    for rows in (apart, joined):
        assert list(read_corpus([write_corpus(tmp_path / "c.jsonl", rows)])) == documents
    pq.write_table(pa.table({"id": ["0", "1"], "contents": [d.contents for d in documents]}), tmp_path / "c.parquet")
    assert list(read_corpus([tmp_path / "c.parquet"])) == documents


@pytest.mark.parametrize(
    ("row", "match"),
    [
        (b"{", "c.jsonl row 2: not valid JSON"),
        (b'{"id": "\xff"}', "row 2: byte 9 of the line"),
        ({"contents": "x"}, "row 2: 'id' must be a non-empty string or an integer, not None"),
        ({"id": True, "contents": "x"}, "row 2: 'id' must be"),
        ({"id": "b"}, "row 2: it has neither 'contents' nor 'text'"),
        ({"id": "b", "contents": " "}, "row 2: the document is empty"),
        ({"id": "b", "text": 5}, "row 2: 'text' must be text, not int"),
        ({"id": "b", "text": "x\0"}, "row 2: 'text' holds a NUL"),
        (b'{"id": "b", "text": "\\udc00"}', "row 2: 'text' holds a lone surrogate"),
        ({"id": "a", "text": "x"}, "row 2: the id 'a' occurs twice"),
    ],
)
def test_bad_document_is_refused_with_file_and_row(tmp_path: Path, row: dict[str, Any] | bytes, match: str) -> None:
    path = write_corpus(tmp_path / "c.jsonl", [{"id": "a", "text": "x"}, row])
    with pytest.raises(DataError, match=match):
        list(read_corpus([path]))


@pytest.mark.covers("evaluation-25")
def test_inflected_words_find_their_document(tmp_path: Path) -> None:
    texts = ("The runners were running quickly", "Cats sleep all day", "Paris is the capital of France")
    index = index_of(tmp_path, *texts)
    for number, query in enumerate(("running", "sleeping cats", "capital")):
        hit = index.search(query, 5)[0]
        assert (hit.id, hit.text) == (str(number), texts[number])
        assert hit.score > 0


@pytest.mark.covers("evaluation-21")
def test_returns_no_more_documents_than_match(tmp_path: Path) -> None:
    index = index_of(tmp_path, "tower one", "tower two", "tower three")
    assert sorted(found(index, "tower", 5)) == ["0", "1", "2"]
    assert found(index, "two", 1_000_000) == ["1"]


@pytest.mark.parametrize("query", ["", " \n", "zzz", "the of and", "?!", "\0\ud800"])
def test_query_without_known_words_finds_nothing(tmp_path: Path, query: str) -> None:
    assert index_of(tmp_path, "a tower stands here").search(query, 4) == []


@pytest.mark.parametrize("top_n", [0, -1])
def test_zero_documents_may_be_requested(tmp_path: Path, top_n: int) -> None:
    assert index_of(tmp_path, "tower").search("tower", top_n) == []


def test_equal_scores_are_in_corpus_order_at_any_limit(tmp_path: Path) -> None:
    index = index_of(tmp_path, "hill", *["tower"] * 20, "tower tower tower")
    everything = found(index, "tower", 100)
    assert everything == ["21", *map(str, range(1, 21))]
    assert all(found(index, "tower", count) == everything[:count] for count in range(1, 22))


def test_single_digits_and_any_script_are_words(tmp_path: Path) -> None:
    index = index_of(tmp_path, "gate 7 of Vorna", "gate 8 of Vorna", "река Ильме", "ＶＯＲＮＡ １２")
    assert found(index, "gate 7", 1) == ["0"]
    assert found(index, "РЕКА", 1) == ["2"]
    assert found(index, "vorna 12", 1) == ["3"]


def test_huge_query_is_truncated(tmp_path: Path) -> None:
    index = index_of(tmp_path, "tower", "hill")
    assert found(index, "tower " + "x " * 5_000_000 + "hill") == ["0"]


def test_documents_are_returned_verbatim(tmp_path: Path) -> None:
    path = write_corpus(tmp_path / "c.jsonl", [{"id": "a/b \u2028", "contents": "Títle\n  text\u2029 \U0001f6f6\n"}])
    (hit,) = opened(path).search("title títle text", 4)
    assert (hit.id, hit.title, hit.contents) == ("a/b \u2028", "Títle", "Títle\n  text\u2029 \U0001f6f6\n")


def test_index_is_built_once_and_rebuilt_for_another_corpus(tmp_path: Path) -> None:
    first = index_of(tmp_path, "tower")
    stamp = (first.folder / "index.json").stat().st_mtime_ns
    again = index_of(tmp_path, "tower")
    assert (again.folder, (again.folder / "index.json").stat().st_mtime_ns) == (first.folder, stamp)
    other = index_of(tmp_path, "hill")
    assert other.folder != first.folder
    assert (found(first, "tower"), found(other, "tower")) == (["0"], [])


def test_identity_distinguishes_corpora_and_splits() -> None:
    def identity(*digests: str, **settings: Any) -> dict[str, Any]:
        return file_identity(IndexSettings(corpus_sha256=digests, **settings), None)

    assert identity("a", "b") == identity("a", "b")
    others = [identity("a"), identity("b"), identity("a", "b"), identity("b", "a"), identity("a", chunk_words=9)]
    assert all(one != other for number, one in enumerate(others) for other in others[:number])


def test_interrupted_or_damaged_index_is_never_served(tmp_path: Path) -> None:
    index = index_of(tmp_path, "tower one", "tower two")

    def files() -> list[Path]:
        return sorted(path for path in index.folder.rglob("*") if path.is_file() and not path.name.endswith(".lock"))

    assert len(files()) > 6
    for number in range(len(files())):
        os.truncate(files()[number], 1)
        assert read_manifest(index.folder) is None
        leftover = index.folder.parent / f".tmp-{index.folder.name}"
        leftover.mkdir()
        assert found(index_of(tmp_path, "tower one", "tower two"), "two", 1) == ["1"]
        assert not leftover.exists()


def test_failed_build_leaves_nothing_behind(tmp_path: Path) -> None:
    path = write_corpus(tmp_path / "c.jsonl", [{"id": "a", "text": "x"}, b"{"])
    with pytest.raises(DataError, match="row 2"):
        opened(path)
    assert [item.name for item in (tmp_path / "cache").iterdir() if not item.name.endswith(".lock")] == []


def test_corpus_that_differs_from_its_digest_is_refused(tmp_path: Path) -> None:
    path = write_corpus(tmp_path / "c.jsonl", [{"id": "a", "text": "x"}])
    with pytest.raises(DataError, match="was changed while its index was built"):
        opened(path, corpus_sha256=("0" * 64,))


def test_corpus_without_words_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no document of the corpus has an indexable word"):
        index_of(tmp_path, "the", "!!")


def test_unwritable_cache_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(StorageError, match=r"cannot be stored in .*cache.*TREADLE_CACHE"):
        index_of(tmp_path, "tower")


def test_many_threads_get_the_answers_of_one(tmp_path: Path) -> None:
    index = index_of(tmp_path, *[f"runners pass tower {number} running" for number in range(50)])
    queries = [f"running tower {number}" for number in range(50)]
    alone = [index.search(query, 4) for query in queries]
    start = threading.Barrier(8)

    def ask(_: int) -> list[list[Any]]:
        start.wait()
        return [list(index.search(query, 4)) for query in queries]

    with ThreadPoolExecutor(8) as threads:
        assert all(answers == alone for answers in threads.map(ask, range(8)))


def test_concurrent_builders_of_an_index_do_not_conflict(tmp_path: Path) -> None:
    path = write_corpus(tmp_path / "c.jsonl", [{"id": n, "text": f"tower {n}"} for n in range(200)])
    with ThreadPoolExecutor(4) as threads:
        indexes = list(threads.map(lambda _: opened(path), range(4)))
    assert [found(index, "tower 17", 1) for index in indexes] == [["17"]] * 4
