"""Count the rows of question files before a run, within limits of bytes and rows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from treadle.core.errors import TreadleError
from treadle.core.runs.stage import Instance
from treadle.core.untrusted.input_files import FileFormat, format_of, read_rows
from treadle.datagen.questions.sources import QuestionsSettings, SourceSettings

MAX_BYTES = 256 << 20
"""Most bytes of a .jsonl file that are counted; other formats are parsed, and are not counted if they are larger."""
MAX_ROWS = 200_000
"""Most rows of a file in another format that are counted."""


@dataclass(frozen=True, slots=True)
class FileRows:
    """Number of rows that a source reads."""

    name: str
    num_rows: int
    is_complete: bool = True
    """False if there are more, or the file is too large to be counted (`num_rows` is 0)."""

    def text(self) -> str:
        """Return the number as a line for terminals."""
        if self.is_complete:
            return f"{self.name}: {self.num_rows:,} {'row' if self.num_rows == 1 else 'rows'}"
        return f"{self.name}: more than {self.num_rows:,} rows" if self.num_rows else f"{self.name}: too large to count"


def rows_of_sources(instances: Sequence[Instance]) -> dict[str, FileRows]:
    """Return the row count of each source of `questions` that is a file, by its path; unreadable files are left out.

    An error of a file is not raised, because the stage reports it with all its sources.
    """
    settings = [one.settings for one in instances if isinstance(one.settings, QuestionsSettings)]
    found: dict[str, FileRows] = {}
    for source in settings[0].sources if settings else ():
        if (rows := rows_of(source)) is not None:
            found.setdefault(rows.name, rows)
    return found


def rows_of(source: SourceSettings) -> FileRows | None:
    """Return the row count of a source, at most its `limit`; None if the source is not a readable file."""
    if source.path is None or not source.path.is_file():
        return None
    try:
        counted, is_complete = _count(source.path, source.format)
    except (TreadleError, OSError):
        return None
    if source.limit is not None and (is_complete or counted >= source.limit):
        counted, is_complete = min(counted, source.limit), True
    return FileRows(str(source.path), counted, is_complete)


def _count(path: Path, configured: FileFormat | None) -> tuple[int, bool]:
    """Return the number of rows, and whether these are all."""
    if format_of(path, configured) == "jsonl":
        with path.open("rb") as file:
            count = 0
            while file.tell() < MAX_BYTES:
                lines = file.readlines(1 << 20)
                if not lines:
                    return count, True
                count += sum(not line.isspace() for line in lines)
            return count, not file.read(1)
    if path.stat().st_size > MAX_BYTES:
        return 0, False
    counted = sum(1 for _ in itertools.islice(read_rows(path, configured), MAX_ROWS + 1))
    return min(counted, MAX_ROWS), counted <= MAX_ROWS
