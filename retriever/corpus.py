"""Read a corpus of documents from JSON Lines, JSON or parquet.

Two layouts are supported: `{id, contents}`, whose first line is the title, and `{id, title, text}`. A corpus is checked
strictly, because a document that is silently missing shows up only as an agent that cannot answer.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treadle.core.errors import DataError
from treadle.core.untrusted.input_files import InputRow, format_of, read_rows


@dataclass(frozen=True, slots=True)
class Document:
    """A document or a passage of one. `id` is always a string, even if the file has numbers."""

    id: str
    title: str
    text: str

    @property
    def contents(self) -> str:
        """Title and text in the form that is indexed and shown; the title, if any, is on a line of its own."""
        return f"{self.title}\n{self.text}" if self.title else self.text


@dataclass(frozen=True, slots=True)
class Chunking:
    """Splitting of long documents into passages of `max_words` words; each repeats `overlap_words` of the last one."""

    max_words: int
    overlap_words: int = 0


def read_corpus(paths: Sequence[Path], chunking: Chunking | None = None) -> Iterator[Document]:
    """Yield all documents of the files in order, optionally split.

    Raises DataError with file and row for the first bad document, and after the last row for ids that occur twice in
    the corpus. Memory: 8 bytes per document.
    """
    ids = array("Q")
    for _, _, document in _documents(paths, chunking):
        ids.append(_id_digest(document.id))
        yield document
    _refuse_repeated_ids(paths, chunking, ids)


def check_first_rows(paths: Sequence[Path]) -> None:
    """Raise DataError if a file has no rows or its first row is not a document, as in a corpus of another layout.

    A JSON array is skipped, because reading its first row means reading all of it.
    """
    for path in paths:
        if format_of(path) != "json":
            _document(path, next(read_rows(path)))


def split(document: Document, chunking: Chunking) -> list[Document]:
    """Split a document into passages, each with its title; ids are `<id>#0`, `<id>#1`, ... if there are several."""
    words = [match.span() for match in re.finditer(r"\S+", document.text)]
    if len(words) <= chunking.max_words:
        return [document]
    step = chunking.max_words - chunking.overlap_words
    starts = range(0, len(words) - chunking.overlap_words, step)
    passages = []
    for number, start in enumerate(starts):
        last = min(start + chunking.max_words, len(words)) - 1
        text = document.text[words[start][0] : words[last][1]]
        passages.append(Document(f"{document.id}#{number}", document.title, text))
    return passages


def _documents(paths: Sequence[Path], chunking: Chunking | None) -> Iterator[tuple[Path, InputRow, Document]]:
    for path in paths:
        for row in read_rows(path):
            document = _document(path, row)
            for passage in split(document, chunking) if chunking else [document]:
                yield path, row, passage


def _id_digest(id_: str) -> int:
    return int.from_bytes(hashlib.blake2b(id_.encode(), digest_size=8).digest(), "little")


def _refuse_repeated_ids(paths: Sequence[Path], chunking: Chunking | None, ids: array[int]) -> None:
    """Raise DataError if an id occurs twice; read the corpus again only if two digests are equal."""
    import numpy as np

    digests = np.sort(np.frombuffer(ids, dtype=np.uint64))
    repeated = {int(digest) for digest in digests[1:][digests[1:] == digests[:-1]]}
    if not repeated:
        return
    seen: set[str] = set()
    for path, row, document in _documents(paths, chunking):
        if _id_digest(document.id) in repeated:
            if document.id in seen:
                raise _bad(path, row, f"the id {document.id[:60]!r} occurs twice; ids must be unique")
            seen.add(document.id)


def _bad(path: Path, row: InputRow, what: str) -> DataError:
    return DataError(f"corpus {path} row {row.number}: {what}")


def _document(path: Path, row: InputRow) -> Document:
    if row.value is None:
        raise _bad(path, row, row.detail)
    fields = row.value
    if fields.get("contents") is not None:
        contents = _text(path, row, "contents")
        title, newline, text = contents.partition("\n")
        document = Document(_id(path, row), title, text) if newline else Document(_id(path, row), "", contents)
    elif fields.get("text") is not None:
        title = _text(path, row, "title") if fields.get("title") is not None else ""
        document = Document(_id(path, row), " ".join(title.split()), _text(path, row, "text"))
    else:
        raise _bad(path, row, "it has neither 'contents' nor 'text'; write {id, contents} or {id, title, text}")
    if not document.contents.strip():
        raise _bad(path, row, "the document is empty")
    return document


def _id(path: Path, row: InputRow) -> str:
    value = (row.value or {}).get("id")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and value:
        return _checked(path, row, "id", value)
    raise _bad(path, row, f"'id' must be a non-empty string or an integer, not {value!r:.60}")


def _text(path: Path, row: InputRow, name: str) -> str:
    value: Any = (row.value or {}).get(name)
    if not isinstance(value, str):
        raise _bad(path, row, f"{name!r} must be text, not {type(value).__name__}")
    return _checked(path, row, name, value)


def _checked(path: Path, row: InputRow, name: str, value: str) -> str:
    if "\0" in value:
        raise _bad(path, row, f"{name!r} holds a NUL character")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise _bad(path, row, f"{name!r} holds a lone surrogate") from None
    return value
