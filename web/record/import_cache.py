"""Read search caches of other programs as entries of a web record.

Several programs keep their searches as one JSON object, or one SQLite table, of query -> result. There is no standard;
the supported forms are listed in docs/behaviour/web.md, Import. Such files are untrusted: nothing in them is evaluated,
and everything is bounded.
"""

from __future__ import annotations

import contextlib
import math
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from treadle.core.errors import DataError
from treadle.core.store.storage import storage_errors
from treadle.core.untrusted.json_text import load_json
from treadle.core.untrusted.sanitize import one_line
from treadle.retriever.index import MAX_QUERY_CHARS
from treadle.web.keys import loose_key, page_key, search_key
from treadle.web.pages.passages import clean_beginning, clean_line, language_of
from treadle.web.provider_requests import organic_hits
from treadle.web.types import IMPORTED, MAX_TEXT_CHARS, Entry, PageEntry, SearchEntry, Unfetchable
from treadle.web.urls import checked_url

MAX_FILE_BYTES = 2 << 30
"""Largest JSON file that is read, since it is loaded whole."""
MAX_TABLE_CHARS = MAX_FILE_BYTES
"""Most characters of all values of a table; a few bytes of a file can expand to many of them."""
MAX_VALUE_BYTES = 8 << 20
"""Largest value of a table in bytes."""
_IS_ERROR = "its result is the text of an error"
_ERROR_KEYS = frozenset({"error", "errors", "statusCode", "status_code"})
_ERROR_CHARS = 300
"""A text of at least this length is taken for a result, however it begins."""
_ERROR = re.compile(
    r"""\W*(?:
      (?:\w+\s){0,3}(?:search|request|fetch|query|api|connection|download)\s(?:has\s)?(?:failed|error|timed\sout)\b
    | (?:\w*error|\w*exception|failure|failed)
      (?:\s*[:(\[\]\d-]|\s(?:fetching|reading|loading|while|in|occurred|code|to)\b|\W*$)
    | (?:an?\s)?(?:\w+\s)?error\s(?:has\s)?occurred
    | (?:timeout|timed\sout)(?:\s*[:(\d]|\s(?:error|while|after|exceeded|reached|waiting)\b|\W*$)
    | (?:can\s?not|can't|could\snot|couldn't|unable\sto)\s(?:be\s)?
      (?:fetch|open|load|access|retrieve|read|connect|reach)
    | https?\s?(?:error|status)?(?:\scode)?\s*:?\s*[45]\d\d\b
    | [45]\d\d\b\W*
      (?:client|server|too\smany|forbidden|not\sfound|unauthorized|internal|bad|service|gateway|$)
    | too\smany\srequests
    | rate\slimit(?:ed|\sexceeded|\sreached)
    | traceback\s\(most
    )""",
    re.IGNORECASE | re.VERBOSE,
)
_SQLITE_MAGIC = b"SQLite format 3\0"
_SHOWN_CHARS = 80
_ENVELOPE = "obj"


@dataclass(frozen=True, slots=True)
class SkippedEntry:
    """Item that cannot be imported: its request, and the reason."""

    request: str
    reason: str


@dataclass
class ImportedEntries:
    """Entries of several files by key, each with its loose key if it has one.

    Attributes:
        shapes: Number of results by form.
        repeated: Number of entries whose key was present already.
        skipped: Number of skipped items by reason; `first` describes the first one.
    """

    entries: dict[str, tuple[Entry, str | None]] = field(default_factory=dict)
    shapes: Counter[str] = field(default_factory=Counter)
    repeated: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    first: str = ""

    def in_order(self) -> Iterator[tuple[Entry, str | None]]:
        """Return the entries in the order that `write_record` expects."""
        return (self.entries[key] for key in sorted(self.entries))


def collect_entries(
    files: Sequence[Path],
    *,
    recorded_at: datetime | None = None,
    base: Iterable[tuple[Entry, str | None]] = (),
) -> ImportedEntries:
    """Read the entries of some files, after those of a record (`base`); of entries with equal keys, the first is kept.

    Raises DataError if a file cannot be read or contains nothing usable, and StorageError.
    """
    found = ImportedEntries({entry.key: (entry, loose) for entry, loose in base})
    for path in files:
        usable, first = False, ""
        for item in read_search_cache(path, recorded_at=recorded_at):
            if isinstance(item, SkippedEntry):
                found.skipped[item.reason] += 1
                first = first or f"{path}, {_shown(item.request)}: {item.reason}"
                continue
            usable = True
            found.shapes[_shape(item)] += 1
            if item.key in found.entries:
                found.repeated += 1
            else:
                loose = loose_key(item.query) if isinstance(item, SearchEntry) else None
                found.entries[item.key] = item, loose
        found.first = found.first or first
        if not usable:
            cause = f"; the first entry: {first}" if first else ", as it is empty"
            raise DataError(f"{path} holds no search result or page that can be used{cause}")
    return found


def _shape(entry: Entry) -> str:
    if isinstance(entry, PageEntry):
        return "pages"
    return "searches as text" if entry.text else "searches as hits"


def read_search_cache(path: Path, *, recorded_at: datetime | None = None) -> Iterator[Entry | SkippedEntry]:
    """Yield the entries of a file, in its order.

    `recorded_at` dates entries without a date; without it, the modification time of the file does. Raises DataError if
    the file is not a readable cache, and StorageError if it cannot be opened.
    """
    with storage_errors("read", path), path.open("rb") as file:
        is_sqlite = file.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC
        facts = path.stat()
    date = recorded_at.astimezone(UTC) if recorded_at is not None else datetime.fromtimestamp(facts.st_mtime, UTC)
    if is_sqlite:
        rows = _sqlite_rows(path)
    else:
        if facts.st_size > MAX_FILE_BYTES:
            raise DataError(
                f"{path} has {facts.st_size:,} bytes; a JSON cache may have at most {MAX_FILE_BYTES:,}: split it"
            )
        rows = _json_rows(path)
    for request, value in rows:
        yield _entry(request, value, date)


def _json_rows(path: Path) -> Iterator[tuple[str, Any]]:
    with storage_errors("read", path):
        content = path.read_bytes()
    data = _loaded(content)
    if not isinstance(data, dict):
        raise DataError(f"{path} is neither a JSON object of query -> result nor a SQLite file")
    yield from data.items()


def _loaded(text: str | bytes) -> Any:
    """Return the value of a JSON text, or None if it is not JSON."""
    try:
        return load_json(text.encode("utf-8", "replace") if isinstance(text, str) else text)
    except ValueError:
        return None


def _sqlite_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield each row of the table with columns `key` and `obj` as its key and an object with its other columns."""
    address = f"file:{quote(str(path.absolute()))}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(address, uri=True)) as connection:
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
            connection.text_factory = lambda text: text.decode("utf-8", "replace")
            table, columns = _table(connection, path)
            chosen = ", ".join(f'"{name}"' for name in columns)
            num_chars = 0
            for row in connection.execute(f'SELECT {chosen} FROM "{table}"'):
                num_chars += sum(len(value) for value in row if isinstance(value, str | bytes))
                if num_chars > MAX_TABLE_CHARS:
                    raise DataError(
                        f"{path} holds more than {MAX_TABLE_CHARS:,} characters, the limit of a table: split it"
                    )
                values = dict(zip(columns, row, strict=True))
                yield str(values.pop("key")), values
    except sqlite3.DataError:
        raise DataError(f"{path} cannot be read: one of its values has more than {MAX_VALUE_BYTES:,} bytes") from None
    except sqlite3.Error as error:
        raise DataError(f"{path} cannot be read as SQLite: {one_line(str(error))}") from None


def _table(connection: sqlite3.Connection, path: Path) -> tuple[str, list[str]]:
    names = [str(name) for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    for name in names:
        quoted = name.replace('"', '""')
        columns = [str(row[1]) for row in connection.execute(f'PRAGMA table_info("{quoted}")')]
        if {"key", _ENVELOPE} <= set(columns):
            return quoted, [column for column in ("key", _ENVELOPE, "timestamp", "valid") if column in columns]
    raise DataError(f"{path} has no table with columns key and obj")


def _entry(request: str, value: Any, date: datetime) -> Entry | SkippedEntry:
    if isinstance(value, dict) and _ENVELOPE in value:
        if not value.get("valid", True):
            return SkippedEntry(request, "it is marked as no longer valid")
        date = parse_time(value.get("timestamp")) or date
        value = value[_ENVELOPE]
    if isinstance(value, bytes):
        return SkippedEntry(request, "its result is binary, such as a pickle, which is never read")
    recorded_at = date.isoformat(timespec="seconds")
    # Normalised like a query in the search tool.
    query = clean_line(_without_surrogates(request).strip()[:MAX_QUERY_CHARS])
    if not query:
        return SkippedEntry(request, "its query is blank")
    if query.lower().startswith(("http://", "https://")) and len(query.split()) == 1:
        return _page(query, value, recorded_at)
    return _search(query, value, recorded_at)


def _is_error_text(text: str) -> bool:
    """Return whether a text is an error message, which some programs cache instead of a result."""
    if len(text) >= _ERROR_CHARS:
        return False
    parsed_error = _loaded(text) if text.startswith("{") else None
    return _ERROR.match(text) is not None or (
        isinstance(parsed_error, dict) and bool(_ERROR_KEYS & parsed_error.keys())
    )


def _page(address: str, value: Any, recorded_at: str) -> PageEntry | SkippedEntry:
    try:
        url = str(checked_url(address))
    except Unfetchable as error:
        return SkippedEntry(address, f"its URL is invalid: {error.detail}")
    if not isinstance(value, str) or not (text := clean_beginning(_without_surrogates(value), MAX_TEXT_CHARS)):
        return SkippedEntry(address, "its page is not a text")
    if _is_error_text(text):
        return SkippedEntry(address, _IS_ERROR)
    return PageEntry(
        page_key(url), url, recorded_at, final_url=url, text=text, media_type="text/plain", reader=IMPORTED
    )


def _search(query: str, value: Any, recorded_at: str) -> SearchEntry | SkippedEntry:
    language = language_of(query)
    key = search_key(query, language)
    if isinstance(value, str):
        parsed = _loaded(value) if value.lstrip()[:1] in ("{", "[") else None
        if organic_hits(parsed) is None:
            if not (text := clean_beginning(_without_surrogates(value), MAX_TEXT_CHARS)):
                return SkippedEntry(query, "its result is empty")
            if _is_error_text(text):
                return SkippedEntry(query, _IS_ERROR)
            return SearchEntry(key, query, language, IMPORTED, (), recorded_at, text)
        value = parsed
    hits = organic_hits(value)
    # An empty answer that is recognisable only by `general`: not evidence that nothing was found.
    if hits is None or (isinstance(value, dict) and "general" in value and "organic" not in value and not hits):
        return SkippedEntry(query, "its result is of an unknown form")
    return SearchEntry(key, query, language, IMPORTED, hits, recorded_at)


def parse_time(value: Any) -> datetime | None:
    """Parse a time stamp in seconds since 1970 or in ISO 8601 (UTC if it has no zone); None if it is neither."""
    try:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return datetime.fromtimestamp(value, UTC)
        if isinstance(value, str):
            moment = datetime.fromisoformat(value.strip())
            return moment.astimezone(UTC) if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return None


def _without_surrogates(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _shown(text: str) -> str:
    shown = one_line(text)
    return f"'{shown if len(shown) <= _SHOWN_CHARS else shown[: _SHOWN_CHARS - 3] + '...'}'"
