"""Caches of other programs become entries; see docs/behaviour/web.md, Import."""

from __future__ import annotations

import json
import os
import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.core.errors import DataError, StorageError
from treadle.web.keys import loose_key, page_key, search_key
from treadle.web.pages import passages
from treadle.web.record import import_cache as foreign
from treadle.web.record.import_cache import SkippedEntry, collect_entries, parse_time, read_search_cache
from treadle.web.types import Entry, PageEntry, SearchEntry, WebHit

HIT = WebHit("Tower", "https://example.org/tower", "330 metres tall")
SERPER = [{"title": "Tower", "link": "https://example.org/tower", "snippet": "330 metres tall"}]
BING = [{"name": "Tower", "url": "https://example.org/tower", "snippet": "330 metres tall"}]
BRIGHT = [{"title": "Tower", "link": "https://example.org/tower", "description": "330 metres tall"}]


def written(tmp_path: Path, content: Any, name: str = "cache.json") -> Path:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    os.utime(path, (1_700_000_000, 1_700_000_000))
    return path


def entries(path: Path, **options: Any) -> list[Entry]:
    found = list(read_search_cache(path, **options))
    assert not [item for item in found if isinstance(item, SkippedEntry)], found
    return [item for item in found if not isinstance(item, SkippedEntry)]


@pytest.mark.parametrize(
    "value",
    [
        {"organic": SERPER, "credits": 1},
        json.dumps({"organic": SERPER}),
        {"organic": BRIGHT},
        {"webPages": {"value": BING}},
        json.dumps({"_type": "SearchResponse", "webPages": {"value": BING}}),
        SERPER,
        json.dumps(SERPER),
        {"obj": {"organic": SERPER}, "timestamp": 1_700_000_000, "valid": True},
        {"obj": json.dumps({"organic": SERPER}), "timestamp": 1_700_000_000.5},
    ],
)
def test_results_are_parsed_in_known_formats(tmp_path: Path, value: Any) -> None:
    (entry,) = entries(written(tmp_path, {"eiffel tower height": value}))
    assert entry == SearchEntry(
        search_key("eiffel tower height", "en"), "eiffel tower height", "en", "import", (HIT,),
        "2023-11-14T22:13:20+00:00",
    )  # fmt: skip


def test_result_may_be_plain_text(tmp_path: Path) -> None:
    (entry,) = entries(written(tmp_path, {"埃菲尔铁塔": "Page 1: \x1b[2J330\u202e metres"}))
    assert isinstance(entry, SearchEntry) and entry.language == "zh" and entry.hits == ()
    assert entry.text == "Page 1: [2J330 metres" and entry.key == search_key("埃菲尔铁塔", "zh")


@pytest.mark.parametrize(
    "text",
    [
        "Serper search failed",
        "error: 429 Too Many Requests",
        "Error fetching URL: 403",
        "[Error] HTTPConnectionPool(host='x', port=443): Read timed out.",
        "ConnectTimeoutError(...)",
        "Timed out after 30 s",
        "Can not fetch the page content.",
        "HTTP error: 503",
        "502 Bad Gateway",
        "Failed to retrieve results",
        "An unexpected error occurred",
        '{"error": "Unauthorized."}',
        '{"message": "Not enough credits", "statusCode": 400}',
        {"general": {}},
    ],
)
def test_error_text_is_not_a_result(tmp_path: Path, text: Any) -> None:
    found = list(read_search_cache(written(tmp_path, {"q": text, "https://e.org/a": text})))
    assert all(isinstance(item, SkippedEntry) for item in found) and len(found) == 2


@pytest.mark.parametrize(
    "text",
    [
        "Error analysis is a branch of linguistics.",
        "Failure is an option, says the author of the book.",
        "500 Miles is a song of 1961.",
        "HTTP status codes are issued by a server.",
        "Timeout is a short film.",
        "Error: " + "the word has many meanings. " * 20,
    ],
)
def test_text_about_errors_is_a_result(tmp_path: Path, text: str) -> None:
    assert [type(entry) for entry in entries(written(tmp_path, {"q": text, "https://e.org/a": text}))] == [
        SearchEntry,
        PageEntry,
    ]


def test_query_is_normalised_as_an_agent_would_send_it(tmp_path: Path) -> None:
    (entry,) = entries(written(tmp_path, {" eiffel\u200b\n tower ": "text"}))
    assert isinstance(entry, SearchEntry) and entry.query == "eiffel tower"
    assert entry.key == search_key("eiffel tower", "en")


def test_text_that_only_starts_like_json_is_text(tmp_path: Path) -> None:
    (entry,) = entries(
        written(
            tmp_path,
            {
                "q": "{not json",
            },
        )
    )
    assert entry.text == "{not json"


def test_empty_search_result_is_a_result(tmp_path: Path) -> None:
    found = entries(written(tmp_path, {"a": [], "b": {"organic": []}}))
    assert [(entry.text, getattr(entry, "hits", None)) for entry in found] == [("", ()), ("", ())]


def test_address_with_text_is_a_page(tmp_path: Path) -> None:
    (entry,) = entries(written(tmp_path, {"HTTPS://Example.org:443/a#part": "The text."}))
    url = "https://example.org/a"
    assert isinstance(entry, PageEntry) and (entry.key, entry.url, entry.text) == (page_key(url), url, "The text.")
    assert entry.failure is None


@pytest.mark.parametrize(
    ("request_", "value", "why"),
    [
        ("q", None, "unknown form"),
        ("q", 3, "unknown form"),
        ("q", {"error": "timeout"}, "unknown form"),
        ("q", ["text"], "unknown form"),
        ("q", "  ", "empty"),
        (" ", "text", "blank"),
        ("q", {"obj": "text", "valid": False}, "no longer valid"),
        ("q", {"obj": None, "timestamp": 3}, "unknown form"),
        ("http://user:pass@example.org/", "text", "URL is invalid"),
        ("http://][@", "text", "URL is invalid"),
        ("https://example.org/", {"organic": SERPER}, "not a text"),
    ],
)
def test_invalid_entries_are_reported(tmp_path: Path, request_: str, value: Any, why: str) -> None:
    (item,) = read_search_cache(written(tmp_path, {request_: value}))
    assert isinstance(item, SkippedEntry) and why in item.reason


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"null", b"\xff\xfe", b'{"a": ', b"[" * 100_000, b'{"a":' * 100_000, b"PK\x03\x04"]
)
def test_file_that_is_not_a_cache_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DataError, match="neither a JSON object"):
        list(read_search_cache(written(tmp_path, content)))


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="nowhere"):
        list(read_search_cache(tmp_path / "nowhere.json"))


def test_lone_surrogates_are_replaced(tmp_path: Path) -> None:
    (entry,) = entries(written(tmp_path, b'{"a\\ud800": "b\\udfff"}'))
    entry.to_json()


def test_dates_come_from_the_entry_then_the_user_then_the_file(tmp_path: Path) -> None:
    dated = {"obj": "text", "timestamp": "2024-05-01T12:00:00+02:00"}
    path = written(tmp_path, {"a": dated, "b": "text", "c": {"obj": "text", "timestamp": "yesterday"}})
    assert [entry.recorded_at for entry in entries(path)] == [
        "2024-05-01T10:00:00+00:00", "2023-11-14T22:13:20+00:00", "2023-11-14T22:13:20+00:00",
    ]  # fmt: skip
    given_date = datetime(2025, 1, 1, tzinfo=UTC)
    assert [entry.recorded_at[:4] for entry in entries(path, recorded_at=given_date)] == ["2024", "2025", "2025"]


@given(st.one_of(st.text(max_size=30), st.floats(), st.integers(), st.none(), st.booleans(), st.datetimes().map(str)))
def test_any_time_stamp_is_a_time_or_none(value: Any) -> None:
    moment = parse_time(value)
    assert moment is None or moment.isoformat(timespec="seconds").endswith("+00:00")


def sqlite_cache(path: Path, rows: list[tuple[Any, ...]], columns: str = "key, obj, timestamp, valid") -> Path:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE other (name)")
        connection.execute(f'CREATE TABLE "the ""cache" ({columns})')
        marks = ", ".join("?" * len(columns.split(",")))
        connection.executemany(f'INSERT INTO "the ""cache" VALUES ({marks})', rows)
    connection.close()
    return path


def test_sqlite_file_is_read_and_not_changed(tmp_path: Path) -> None:
    good, old, pickled = (
        ("a", json.dumps({"organic": SERPER}), 1e9, 1),
        ("b", "text", 1e9, 0),
        ("c", b"\x80\x04", 1e9, 1),
    )
    path = sqlite_cache(tmp_path / "cache.db", [good, old, pickled])
    before = path.read_bytes()
    entry, first, second = read_search_cache(path)
    assert isinstance(entry, SearchEntry) and entry.hits == (HIT,) and entry.recorded_at == "2001-09-09T01:46:40+00:00"
    assert isinstance(first, SkippedEntry) and "valid" in first.reason
    assert isinstance(second, SkippedEntry) and "pickle" in second.reason
    assert path.read_bytes() == before and [item.name for item in tmp_path.iterdir()] == ["cache.db"]


def test_sqlite_file_that_is_damaged_or_lacks_the_table_is_refused(tmp_path: Path) -> None:
    path = sqlite_cache(tmp_path / "other.db", [], columns="name, value")
    with pytest.raises(DataError, match="no table with columns key and obj"):
        list(read_search_cache(path))
    damaged = written(tmp_path, b"SQLite format 3\0" + b"\xff" * 500, "damaged.db")
    with pytest.raises(DataError, match="SQLite"):
        list(read_search_cache(damaged))


def test_text_of_many_marks_or_blanks_is_read_up_to_its_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cleaned = list[int]()

    def noted(text: str) -> str:
        cleaned.append(len(text))
        return passages_clean(text)

    passages_clean = passages.clean
    monkeypatch.setattr(passages, "clean", noted)
    long = {"https://e.org/": " " * 10_000_000 + "late", "q": "word " * 400_000, "z": "a" + "\u0315\u0300" * 500_000}
    found = list(read_search_cache(written(tmp_path, long)))
    assert isinstance(found[0], SkippedEntry) and "not a text" in found[0].reason
    assert [len(item.text) for item in found[1:] if not isinstance(item, SkippedEntry)] == [49_999, 30]
    # Most of the discarded text is not examined.
    assert max(cleaned) <= 2 * 16 * 50_000


def test_non_text_value_affects_no_other(tmp_path: Path) -> None:
    path = sqlite_cache(tmp_path / "cache.db", [("a", "fine", 1e9, 1)])
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO \"the \"\"cache\" VALUES ('b', CAST(x'ff41' AS TEXT), 1e9, 1)")
    connection.close()
    assert [entry.text for entry in entries(path)] == ["fine", "A"]


def test_small_file_that_expands_to_a_large_table_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def bomb(name: str, num_rows: int, num_chars: int) -> Path:
        path = tmp_path / name
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE cache (key TEXT)")
            connection.executemany("INSERT INTO cache VALUES (?)", ((f"q{row}",) for row in range(num_rows)))
            connection.execute(f"ALTER TABLE cache ADD COLUMN obj DEFAULT '{'x' * num_chars}'")
        connection.close()
        assert path.stat().st_size < num_rows * num_chars / 10
        return path

    path = sqlite_cache(tmp_path / "value.db", [("a", "x" * (foreign.MAX_VALUE_BYTES + 1), 1e9, 1)])
    with pytest.raises(DataError, match=r"value\.db cannot be read: one of its values has more than 8,388,608 bytes"):
        collect_entries([path])
    monkeypatch.setattr(foreign, "MAX_TABLE_CHARS", 1_000_000)
    with pytest.raises(DataError, match=r"rows\.db holds more than 1,000,000 characters.*split it"):
        collect_entries([bomb("rows.db", 101, 10_000)])
    assert len(collect_entries([bomb("fewer.db", 99, 10_000)]).entries) == 99


def test_view_named_like_a_cache_is_not_a_table(tmp_path: Path) -> None:
    path = tmp_path / "view.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE VIEW cache AS SELECT load_extension('x') AS key, 'text' AS obj")
    connection.close()
    with pytest.raises(DataError, match="no table"):
        list(read_search_cache(path))


def test_first_result_for_a_query_among_several_files_is_kept(tmp_path: Path) -> None:
    first = written(tmp_path, {"Eiffel Tower?": "first", "bad": None}, "1.json")
    second = written(tmp_path, {"Eiffel Tower?": "second", "other": SERPER}, "2.json")
    kept = SearchEntry(search_key("other", "en"), "other", "en", "serper", (), "2024-01-01T00:00:00+00:00", "kept")
    found = collect_entries([first, second], base=[(kept, None)])
    in_order = list(found.in_order())
    assert [entry.key for entry, _ in in_order] == sorted(entry.key for entry, _ in in_order) and len(in_order) == 2
    assert found.entries[kept.key] == (kept, None)
    entry, loose = found.entries[search_key("Eiffel Tower?", "en")]
    assert entry.text == "first" and loose == loose_key("eiffel tower")
    assert (
        found.repeated == 2
        and found.skipped == {"its result is of an unknown form": 1}
        and "1.json, 'bad'" in found.first
    )
    assert found.shapes == {"searches as text": 2, "searches as hits": 1}


def test_file_without_usable_entries_is_refused(tmp_path: Path) -> None:
    good = written(tmp_path, {"a": "text"}, "good.json")
    with pytest.raises(DataError, match=r"bad\.json holds no search result.*unknown form"):
        collect_entries([good, written(tmp_path, {"q\x1b[2J": None}, "bad.json")])
    with pytest.raises(DataError, match="as it is empty"):
        collect_entries([written(tmp_path, {}, "empty.json")])
