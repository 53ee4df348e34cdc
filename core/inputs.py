"""Reading users' files row by row, so that one bad row is a finding with its place and not a crash.

Question files and corpora come as JSON Lines, JSON arrays or parquet, made by anybody. A file that cannot be read at
all raises `DataError`; a row that cannot be read is handed on with its number, a reason code and what was found.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from treadle.core.errors import DataError

FileFormat = Literal["jsonl", "json", "parquet"]
FORMATS: dict[str, FileFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
}
MAX_ROW_BYTES = 64 * 2**20
"""A longer line is not held in memory: it is skipped and reported. No escape makes 10 MB of text longer than this."""
_BOM = b"\xef\xbb\xbf"
_RAW_CHARS = 2_000


@dataclass(frozen=True, slots=True)
class InputRow:
    """One row of a file. Either `value` holds its fields, or `reason` and `detail` say why there are none."""

    number: int
    """1-based: the line in a JSON Lines file, the position elsewhere."""
    value: dict[str, Any] | None
    reason: str = ""
    detail: str = ""
    source: bytes | None = None
    """The bytes as read, where the format has such."""

    @property
    def raw(self) -> str:
        """The row for a reader, cut to 2,000 characters; bytes and characters that are no text are replaced."""
        if self.source is not None:
            text = self.source[: 4 * _RAW_CHARS].decode("utf-8", "replace")
        else:
            text = json.dumps(self.value, ensure_ascii=False, default=str)
        return text[:_RAW_CHARS].encode("utf-8", "replace").decode("utf-8").replace("\0", "\N{SYMBOL FOR NULL}")


def file_sha256(path: Path) -> str:
    """Hex SHA-256 of a file, or of a folder's files with their relative names; raises DataError."""
    try:
        if path.is_dir():
            names = sorted(item for item in path.rglob("*") if item.is_file())
            parts = [f"{item.relative_to(path).as_posix()}\0{file_sha256(item)}\n" for item in names]
            return hashlib.sha256("".join(parts).encode("utf-8", "surrogateescape")).hexdigest()
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> DataError:
    """The error for a file that cannot be opened or read, with what to do about it."""
    if isinstance(error, FileNotFoundError):
        return DataError(f"input file {path.absolute()} does not exist; correct its path in the configuration")
    if isinstance(error, PermissionError):
        return DataError(f"input file {path} may not be read by this user; change its permissions")
    return DataError(f"input file {path} cannot be read: {error.strerror or error}")


def format_of(path: Path, configured: FileFormat | None = None) -> FileFormat:
    """The format as configured or by the file's suffix; raises DataError for an unknown one."""
    if configured is not None:
        return configured
    try:
        return FORMATS[path.suffix.lower()]
    except KeyError:
        raise DataError(
            f"input file {path}: its format cannot be told from {path.suffix or 'a name without suffix'!r}; "
            f"name it {', '.join(FORMATS)} or set format"
        ) from None


def read_rows(
    path: Path, configured: FileFormat | None = None, *, max_row_bytes: int = MAX_ROW_BYTES
) -> Iterator[InputRow]:
    """Stream the rows of one file (a JSON array is held in memory); raises DataError for a missing or empty file."""
    format_ = format_of(path, configured)
    readers = {"jsonl": _read_jsonl, "json": _read_json, "parquet": _read_parquet}
    num_rows = 0
    try:
        for row in readers[format_](path, max_row_bytes):
            num_rows += 1
            yield row
    except OSError as error:
        raise unreadable(path, error) from error
    if num_rows == 0:
        raise DataError(f"input file {path} holds no rows; give another file or remove it from the configuration")


def _read_jsonl(path: Path, max_row_bytes: int) -> Iterator[InputRow]:
    with path.open("rb") as stream:
        number = 0
        while line := stream.readline(max_row_bytes):
            number += 1
            if len(line) == max_row_bytes and not line.endswith(b"\n"):
                _skip_line(stream, max_row_bytes)
                yield InputRow(number, None, "too_long", f"the line has more than {max_row_bytes:,} bytes", line)
                continue
            line = line.removeprefix(_BOM) if number == 1 else line
            if line.strip():
                yield parse_line(number, line.rstrip(b"\r\n"))


def _skip_line(stream: io.BufferedReader, max_row_bytes: int) -> None:
    while (rest := stream.readline(max_row_bytes)) and not rest.endswith(b"\n"):
        pass


def parse_line(number: int, line: bytes) -> InputRow:
    """Read one JSON object; the standard parser, because it keeps big integers and lets lone surrogates be named."""
    try:
        value = json.loads(line.decode("utf-8"))
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
    return InputRow(number, None, "not_an_object", f"a JSON object is needed, not {type(value).__name__}", source)


def _read_json(path: Path, max_row_bytes: int) -> Iterator[InputRow]:
    with path.open("rb") as stream:
        head = stream.read(4096).removeprefix(_BOM).lstrip()
    if not head.startswith(b"["):
        # Many files called .json hold one object a line.
        yield from _read_jsonl(path, max_row_bytes)
        return
    try:
        values = json.loads(path.read_bytes().removeprefix(_BOM).decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"input file {path} is not UTF-8 at byte {error.start + 1}; convert it to UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"input file {path} is not valid JSON: {error}; correct it, or use JSON Lines") from None
    for number, value in enumerate(values, start=1):
        yield _as_row(number, value, None)


def _read_parquet(path: Path, max_row_bytes: int) -> Iterator[InputRow]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=256):
                for index in range(batch.num_rows):
                    number += 1
                    yield _parquet_row(number, batch.slice(index, 1))
    except pa.ArrowInvalid as error:
        raise DataError(f"input file {path} is not a readable parquet file: {str(error).splitlines()[0]}") from None


def _parquet_row(number: int, batch: Any) -> InputRow:
    try:
        return InputRow(number, batch.to_pylist()[0])
    except UnicodeDecodeError as error:
        return InputRow(number, None, "not_utf8", f"a text of the row is not UTF-8: {error.reason}", error.object)
