"""Read files of users row by row, and report a bad row with its position instead of failing.

Question files and corpora come as JSON Lines, JSON, CSV or parquet, from any source. A file that cannot be read at
all raises `DataError`. A row that cannot be read is returned with its number, a reason code and a description.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from treadle.core.errors import DataError
from treadle.core.untrusted.confined_rows import STREAMED_BYTES, UnreadableInput, UnreadableRow, read_parquet
from treadle.core.untrusted.csv_text import UnreadableCsv, csv_rows
from treadle.core.untrusted.json_text import exact_integer

FileFormat = Literal["jsonl", "json", "csv", "parquet"]
FORMATS: dict[str, FileFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
}
MAX_ROW_BYTES = 64 * 2**20
"""Maximum length of a line in bytes; a longer one is skipped and reported. 10 MB of text always fit, however they are
escaped."""
_BOM = b"\xef\xbb\xbf"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip", ".7z", ".tar")
_SHEETS = (".xlsx", ".xls", ".xlsm", ".ods")
_ROW_FIELDS = frozenset({"question", "problem", "prompt", "query", "input", "instruction"})
"""Names of text fields, in lower case: a JSON object with one of them is itself a row, even if it also has lists."""
_RAW_CHARS = 2_000


@dataclass(frozen=True, slots=True)
class InputRow:
    """One row of a file: either `value` holds its fields, or `reason` and `detail` say why it has none."""

    number: int
    """1-based number: the line in a JSON Lines or CSV file, otherwise the position."""
    value: dict[str, Any] | None
    reason: str = ""
    detail: str = ""
    source: bytes | None = None
    """Bytes as read, if the format has them."""

    @property
    def raw(self) -> str:
        """The row for display, cut to 2,000 characters; undecodable bytes and characters are replaced."""
        if self.source is not None:
            text = self.source[: 4 * _RAW_CHARS].decode("utf-8", "replace")
        else:
            text = json.dumps(self.value, ensure_ascii=False, default=str)
        return text[:_RAW_CHARS].encode("utf-8", "replace").decode("utf-8").replace("\0", "\N{SYMBOL FOR NULL}")


def file_sha256(path: Path) -> str:
    """Return the hex SHA-256 of a file, or of a folder's files with their relative names; raise DataError."""
    try:
        if path.is_dir():
            names = sorted(item for item in path.rglob("*") if item.is_file())
            parts = [f"{item.relative_to(path).as_posix()}\0{file_sha256(item)}\n" for item in names]
            return hashlib.sha256("".join(parts).encode("utf-8", "surrogateescape")).hexdigest()
        with open_regular(path) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(path, error) from error


def open_regular(path: Path) -> io.BufferedReader:
    """Open a file for reading; raises DataError for a pipe or device, which would keep its reader waiting."""
    try:
        # With this flag, opening a pipe does not wait for a writer; for regular files it has no effect.
        file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    except OSError as error:
        raise unreadable(path, error) from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise DataError(f"input file {path} is not a regular file; give the path of one")
    return file


def unreadable(path: Path, error: OSError) -> DataError:
    """Return the error for a file that cannot be opened or read, with what to do about it."""
    if isinstance(error, FileNotFoundError):
        return DataError(
            f"input file {path.absolute()} does not exist; correct its path in the configuration"
            + ("" if path.is_absolute() else f", or run the command in the folder that {path} is relative to")
        )
    if isinstance(error, PermissionError):
        return DataError(f"input file {path} may not be read by this user; change its permissions")
    return DataError(f"input file {path} cannot be read: {error.strerror or error}")


def format_of(path: Path, configured: FileFormat | None = None) -> FileFormat:
    """Return the configured format, or the one of the file's suffix; raise DataError if it is unknown."""
    if configured is not None:
        return configured
    try:
        return FORMATS[path.suffix.lower()]
    except KeyError:
        raise DataError(f"input file {path}{_unknown(path)}") from None


def _unknown(path: Path) -> str:
    """Return what to do with a file whose suffix names no known format."""
    suffix = path.suffix.lower()
    if suffix in _PACKED:
        return f" is packed ({suffix}); unpack it"
    if suffix in _SHEETS:
        return f" is a spreadsheet ({suffix}); save it as CSV"
    named = repr(path.suffix) if path.suffix else "a name without suffix"
    return f": its format cannot be inferred from {named}; name it {', '.join(FORMATS)} or set format"


def read_rows(
    path: Path,
    configured: FileFormat | None = None,
    *,
    max_row_bytes: int = MAX_ROW_BYTES,
    columns: Sequence[str] | None = None,
    max_unpacked_bytes: int = STREAMED_BYTES,
) -> Iterator[InputRow]:
    """Yield the rows of one file (a JSON array is held in memory); raise DataError if it is missing or empty.

    Of a parquet file only `columns` are read, but all of its columns if it has no column of these names; see
    `read_parquet` for `max_unpacked_bytes`.
    """
    format_ = format_of(path, configured)
    num_rows = 0
    try:
        if format_ == "parquet":
            rows = _read_parquet(path, columns, max_unpacked_bytes)
        else:
            rows = {"jsonl": _read_jsonl, "json": _read_json, "csv": _read_csv}[format_](path, max_row_bytes)
        for row in rows:
            num_rows += 1
            yield row
    except OSError as error:
        raise unreadable(path, error) from error
    if num_rows == 0:
        raise DataError(f"input file {path} has no rows; use another file or remove it from the configuration")


def _read_jsonl(path: Path, max_row_bytes: int) -> Iterator[InputRow]:
    with path.open("rb") as stream:
        number = 0
        while line := stream.readline(max_row_bytes):
            number += 1
            if len(line) == max_row_bytes and not line.endswith(b"\n"):
                _skip_line(stream, max_row_bytes)
                yield InputRow(number, None, "too_long", f"the line has more than {max_row_bytes:,} bytes", line)
                continue
            if number == 1:
                _refuse_utf_16(path, line)
                line = line.removeprefix(_BOM)
            if line.strip():
                yield parse_line(number, line.rstrip(b"\r\n"))


def _refuse_utf_16(path: Path, head: bytes) -> None:
    """Raise DataError for a file that begins with the mark of UTF-16, as some shells of Windows write them."""
    if head.startswith(_UTF_16):
        raise DataError(f"input file {path} is UTF-16; save it as UTF-8")


def _skip_line(stream: io.BufferedReader, max_row_bytes: int) -> None:
    while (rest := stream.readline(max_row_bytes)) and not rest.endswith(b"\n"):
        pass


def parse_line(number: int, line: bytes) -> InputRow:
    """Parse one JSON object.

    Uses the standard parser, because it keeps big integers and lone surrogates.
    """
    try:
        value = json.loads(line.decode("utf-8"), parse_int=exact_integer)
    except UnicodeDecodeError as error:
        detail = f"byte {error.start + 1} of the line (0x{line[error.start]:02x}) is not UTF-8"
        return InputRow(number, None, "not_utf8", detail, line)
    except (ValueError, RecursionError) as error:
        detail = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        return InputRow(number, None, "bad_json", f"not valid JSON: {detail}", line)
    return _as_row(number, value, line)


def _as_row(number: int, value: object, source: bytes | None) -> InputRow:
    if isinstance(value, dict):
        return InputRow(number, value, source=source)
    source = source if source is not None else json.dumps(value, default=str).encode()
    return InputRow(number, None, "not_an_object", f"expected a JSON object, not {type(value).__name__}", source)


def _read_json(path: Path, max_row_bytes: int) -> Iterator[InputRow]:
    with path.open("rb") as stream:
        head = stream.read(4096)
        _refuse_utf_16(path, head)
        head = head.removeprefix(_BOM).lstrip()
        is_array, is_object = head.startswith(b"["), head.startswith(b"{")
        # An object without a second one after it is the whole file, whether or not it is written on one line.
        is_document = is_array or _spans_lines(head) or (is_object and _has_one_line(stream, max_row_bytes))
    if not is_document:
        # Many files named .json hold one object per line.
        yield from _read_jsonl(path, max_row_bytes)
        return
    try:
        text = path.read_bytes().removeprefix(_BOM).decode("utf-8")
        values = json.loads(text, parse_int=exact_integer)
    except UnicodeDecodeError as error:
        raise DataError(f"input file {path} is not UTF-8 at byte {error.start + 1}; convert it to UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"input file {path} is not valid JSON: {error}; correct it, or use JSON Lines") from None
    for number, value in enumerate(values if isinstance(values, list) else _rows_of_object(path, values), start=1):
        yield _as_row(number, value, None)


def _spans_lines(head: bytes) -> bool:
    """Return whether a JSON file begins with an object that goes on after its first line."""
    line, has_more, _ = head.partition(b"\n")
    if not has_more or not line.startswith(b"{"):
        return False
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return line.strip() == b"{"
    return False


def _has_one_line(stream: io.BufferedReader, max_row_bytes: int) -> bool:
    """Return whether a file has one line with text, which is short enough to be read."""
    stream.seek(0)
    line = stream.readline(max_row_bytes)
    while line.strip() == b"" and line:
        line = stream.readline(max_row_bytes)
    if len(line) == max_row_bytes and not line.endswith(b"\n"):
        return False
    return not any(rest.strip() for rest in iter(lambda: stream.read(4096), b""))


def _rows_of_object(path: Path, value: object) -> list[Any]:
    """Return the rows of one JSON object: those in its list, as in `{"version": 1, "data": [...]}`, or itself."""
    fields = value if isinstance(value, dict) else {}
    if any(isinstance(one, str) and str(name).lower() in _ROW_FIELDS for name, one in fields.items()):
        return [value]
    lists = {name: one for name, one in fields.items() if isinstance(one, list) and one and isinstance(one[0], dict)}
    if len(lists) > 1:
        names = ", ".join(repr(str(name)[:40]) for name in list(lists)[:12])
        raise DataError(f"input file {path} has several lists of rows ({names}); write a file with one array of rows")
    return next(iter(lists.values()), [value])


def _read_csv(path: Path, max_row_bytes: int) -> Iterator[InputRow]:
    with open_regular(path) as stream:
        try:
            for row in csv_rows(stream, max_row_bytes):
                if row.problem:
                    yield InputRow(row.number, None, "bad_csv", row.problem, b"")
                else:
                    yield InputRow(row.number, dict(row.cells))
        except UnreadableCsv as error:
            raise DataError(f"input file {path} cannot be read as CSV: {error}") from None


def _read_parquet(path: Path, columns: Sequence[str] | None, max_unpacked_bytes: int) -> Iterator[InputRow]:
    number = 0
    with open_regular(path) as file:
        try:
            for part in read_parquet(file, columns=columns, max_unpacked_bytes=max_unpacked_bytes):
                for row in input_rows(part, number):
                    yield row
                    number = row.number
        except UnreadableInput as error:
            raise DataError(f"input file {path} is not a readable parquet file: {error}") from None


def input_rows(part: Any, before: int) -> Iterator[InputRow]:
    """Return the rows of a batch or unreadable row, numbered from `before` + 1.

    A row with a value that Python cannot represent has a reason instead of a value.
    """
    if isinstance(part, UnreadableRow):
        yield InputRow(before + 1, None, part.reason, part.detail, part.source)
        return
    try:
        values = part.to_pylist()
    except (ValueError, OverflowError, KeyError) as error:
        if part.num_rows == 1:
            yield InputRow(before + 1, None, "bad_value", f"a value of the row cannot be read: {error}", b"")
        else:
            for index in range(part.num_rows):
                yield from input_rows(part.slice(index, 1), before + index)
        return
    for number, value in enumerate(values, start=before + 1):
        yield InputRow(number, value)
