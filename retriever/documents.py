"""Store the documents of an index on disk, one JSON line each, and read them by row number from a memory map."""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson

from treadle.retriever.corpus import Document

LINES = "documents.jsonl"
OFFSETS = "documents.offsets"
"""Little-endian 64-bit integers: the start of each line, and the end of the last."""
_PROGRESS_EVERY = 10_000


def write_documents(
    folder: Path, documents: Iterable[Document], on_progress: Callable[[int], None] | None = None
) -> Iterator[Document]:
    """Write each document and yield it again, in bounded memory; the files are complete after the last document."""
    position = number = 0
    with (folder / LINES).open("wb") as lines, (folder / OFFSETS).open("wb") as offsets:
        array("q", [0]).tofile(offsets)
        for document in documents:
            line = {"id": document.id, "title": document.title, "text": document.text}
            position += lines.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
            array("q", [position]).tofile(offsets)
            number += 1
            if on_progress is not None and number % _PROGRESS_EVERY == 0:
                on_progress(number)
            yield document


class DocumentStore:
    """The documents of a finished index, by row number."""

    def __init__(self, folder: Path) -> None:
        import numpy as np

        self._offsets: Any = np.memmap(folder / OFFSETS, dtype="<i8", mode="r")
        with (folder / LINES).open("rb") as stream:
            self._lines = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> Document:
        if not 0 <= row < len(self):
            raise IndexError(row)
        line = orjson.loads(self._lines[int(self._offsets[row]) : int(self._offsets[row + 1])])
        return Document(line["id"], line["title"], line["text"])

    def __iter__(self) -> Iterator[Document]:
        return (self[row] for row in range(len(self)))
