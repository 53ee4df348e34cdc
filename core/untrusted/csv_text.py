"""Read CSV as users export it: with a BOM, quotes, line breaks in cells, and commas, semicolons or tabs."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_DELIMITERS = (",", ";", "\t")
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True, slots=True)
class CsvRow:
    """A row of CSV: its cells by column, or the problem that it has."""

    number: int
    """1-based line on which it begins."""
    cells: dict[str, str | list[str] | None]
    """Column -> text, or the texts of a JSON list; null if the cell is empty. Columns without a name, such as an index,
    are left out."""
    problem: str = ""


class UnreadableCsv(Exception):
    """Exception for a file that is no CSV with a header; the message explains what to do."""


def csv_rows(stream: io.BufferedReader, max_cell_chars: int) -> Iterator[CsvRow]:
    """Yield the rows after the header, skipping empty ones; raise UnreadableCsv for a file that cannot be read."""
    if stream.peek(2)[:2] in _UTF16:
        raise UnreadableCsv("it is UTF-16; save it as UTF-8")
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
    csv.field_size_limit(max_cell_chars)
    try:
        header = text.readline()
        rows = csv.reader(itertools.chain([header] if header else [], text), delimiter=_delimiter(header), strict=True)
        names: list[str] | None = None
        while True:
            number = rows.line_num + 1
            try:
                cells = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                if names is None:
                    raise UnreadableCsv(f"its first line is no header: {error}") from None
                yield CsvRow(number, {}, f"not valid CSV: {error}")
                continue
            if names is None:
                names = _header(cells)
            elif any(cell.strip() for cell in cells):
                yield _row(number, cells, names)
    except UnicodeDecodeError as error:
        raise UnreadableCsv(f"byte 0x{error.object[error.start]:02x} in it is not UTF-8; save it as UTF-8") from None


def _header(cells: Sequence[str]) -> list[str]:
    names = [name.strip() for name in cells]
    if twice := [name for name in names if name and names.count(name) > 1]:
        raise UnreadableCsv(f"its header has the column {twice[0][:60]!r} twice; rename one of them")
    return names


def _row(number: int, cells: Sequence[str], names: Sequence[str]) -> CsvRow:
    if len(cells) != len(names):
        problem = f"the row has {len(cells):,} cells, but the header has {len(names):,}; quote text with delimiters"
        return CsvRow(number, {}, problem)
    return CsvRow(number, {name: _value(cell) for name, cell in zip(names, cells, strict=True) if name})


def _value(cell: str) -> str | list[str] | None:
    """Return a list of texts written as JSON, since CSV has no lists; else the text, null if it is empty."""
    if cell.lstrip().startswith('["'):
        try:
            value = json.loads(cell)
        except (ValueError, RecursionError):
            return cell
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return value
    return cell or None


def _delimiter(header: str) -> str:
    """Return the delimiter that occurs most often in the header outside of quotes."""
    bare = "".join(header.split('"')[::2])
    return max(_DELIMITERS, key=bare.count)
