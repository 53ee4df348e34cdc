"""Documents to search in, read from JSON Lines, JSON or parquet.

Two layouts are known: `{id, contents}`, whose first line is the title, and `{id, title, text}`. A corpus is checked
strictly, because a document that is silently missing shows up only as an agent that cannot answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treadle.core.errors import DataError
from treadle.core.inputs import InputRow, read_rows


@dataclass(frozen=True, slots=True)
class Document:
    """One passage. `id` is a string in every corpus, also where the file has numbers."""

    id: str
    title: str
    text: str

    @property
    def contents(self) -> str:
        """Title and text as they are indexed and shown: the title on a line of its own, where there is one."""
        return f"{self.title}\n{self.text}" if self.title else self.text


def read_corpus(paths: Sequence[Path]) -> Iterator[Document]:
    """Stream all documents of the files in order; raises DataError with file and row for the first bad one.

    Ids must differ from each other over all files. Memory: the ids seen.
    """
    seen: set[str] = set()
    for path in paths:
        for row in read_rows(path):
            document = _document(path, row)
            if document.id in seen:
                raise _bad(path, row, f"the id {document.id[:60]!r} occurs twice; ids must be unique")
            seen.add(document.id)
            yield document


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
        raise _bad(path, row, "neither 'contents' nor 'text' is there; write {id, contents} or {id, title, text}")
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
