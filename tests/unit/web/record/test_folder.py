"""A record of the web: from a run's store to an artifact, and from there to look-ups by key."""

from __future__ import annotations

import os
import random
import threading
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sweep import examples
from support.web.web_entries import page_of, record_in, sealed, search_of

from treadle.core.errors import ArtifactError
from treadle.core.runs.run import Run
from treadle.core.store.artifact_reader import ArtifactReader
from treadle.core.store.artifacts import ArtifactWriter, Manifest, verify_artifact
from treadle.core.store.roots import Storage
from treadle.core.store.storage import LocalStorage
from treadle.core.tables import Table
from treadle.web.keys import loose_key
from treadle.web.record import folder as record_folder
from treadle.web.record.folder import KEPT_RECORDS, RecordFolder, open_record, record_digest
from treadle.web.record.stored_entries import MAX_HITS, MAX_TEXT_CHARS, bounded, entries_of, packed, unpacked
from treadle.web.record.table import entry_of, row_of, write_record
from treadle.web.record.tables import WEB_RECORD
from treadle.web.types import Entry, PageEntry, SearchEntry, WebHit

SEARCHES = [search_of(f"query {number}") for number in range(20)]
PAGES = [page_of(f"http://site.test/{number}", f"Text {number}. " * number) for number in range(20)]
FAILED = page_of("http://gone.test/", failure="http")
ENTRIES: list[Entry] = [*SEARCHES, *PAGES, FAILED]

_TEXT = st.text(max_size=30)
_HITS = st.lists(st.builds(WebHit, _TEXT, _TEXT, _TEXT, _TEXT, _TEXT), max_size=3).map(tuple)
_KEYS = st.text("0123456789abcdef", min_size=32, max_size=32)
_ENTRIES = st.one_of(
    st.builds(SearchEntry, _KEYS, _TEXT, st.sampled_from(["en", "zh"]), _TEXT, _HITS, _TEXT, _TEXT),
    st.builds(PageEntry, _KEYS, _TEXT, _TEXT, _TEXT, _TEXT, _TEXT, _TEXT, st.sampled_from([None, "dns"]), _TEXT, _TEXT),
)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TREADLE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache/web"


@given(_ENTRIES)
@settings(max_examples=examples(200), deadline=None)
def test_entry_round_trips_through_the_store_and_a_row(entry: Entry) -> None:
    assert unpacked(packed(entry), "here") == entry
    assert entry_of(row_of(entry)) == entry


def test_entry_is_truncated_and_made_writable() -> None:
    hit = WebHit("t" * 600, "u" * 3000, "s" * 6000, "n" * 300, "d" * 300)
    search = replace(SEARCHES[0], hits=(hit,) * 30, text="x" * 60_000)
    cut = bounded(search)
    assert isinstance(cut, SearchEntry)
    assert (len(cut.hits), len(cut.text)) == (MAX_HITS, MAX_TEXT_CHARS)
    assert [len(text) for text in (cut.hits[0].title, cut.hits[0].url, cut.hits[0].snippet)] == [500, 2048, 5000]
    page = bounded(replace(PAGES[0], text="a\ud800b" + "y" * 60_000, url="http://site.test/\udfff"))
    assert isinstance(page, PageEntry)
    assert page.text[:4] == "a?by"
    assert len(page.text) == MAX_TEXT_CHARS
    assert page.url == "http://site.test/?"
    widest = "\u0001"
    full = replace(
        SEARCHES[0], hits=(WebHit(widest * 500, widest * 2048, widest * 5000, widest * 200, widest * 200),) * MAX_HITS,
        text=widest * MAX_TEXT_CHARS, query=widest * 5000,
    )  # fmt: skip
    assert unpacked(packed(bounded(full)), "here") == full


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "a format that this Treadle does not read"),
        (b"2" + packed(SEARCHES[0])[1:], "a format that this Treadle does not read"),
        (packed(SEARCHES[0])[:-5], "truncated"),
        (packed(SEARCHES[0])[:9] + b"\0\0\0" + packed(SEARCHES[0])[12:], "Error"),
    ],
)
def test_damaged_value_is_named_with_a_remedy(value: bytes, why: str) -> None:
    with pytest.raises(ArtifactError, match=f"the place is damaged: .*{why}.*remove it"):
        unpacked(value, "the place")


def test_value_that_expands_beyond_an_entry_is_refused_before_decompression() -> None:
    with pytest.raises(ArtifactError, match="too large"):
        unpacked(b"1" + zlib.compress(b" " * 100_000_000), "the place")


def test_run_exports_one_artifact_regardless_of_recording_order(tmp_path: Path) -> None:
    refs = []
    for number in range(2):
        store = Run.create(tmp_path / str(number), "r1", {}, {}).store("web")
        for entry in random.Random(number).sample(ENTRIES, len(ENTRIES)):
            store.add(entry.key, packed(entry))
        met = ((entry, None) for entry in entries_of(store))
        refs.append(write_record(LocalStorage(tmp_path), met, made_by=str(number), work="work"))
    assert refs[0] == refs[1]
    assert refs[0].num_rows == len(ENTRIES)
    assert verify_artifact(LocalStorage(tmp_path), refs[0]) == []
    keys = [row["key"] for row in ArtifactReader(LocalStorage(tmp_path), refs[0]).rows(["key"])]
    assert keys == sorted(entry.key for entry in ENTRIES)


def test_unsorted_entries_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    entries = [(entry, None) for entry in sorted(ENTRIES, key=lambda entry: entry.key, reverse=True)]
    with pytest.raises(ValueError, match="in the order of their keys"):
        write_record(LocalStorage(tmp_path), entries, made_by="", work="work")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_every_entry_of_a_record_is_found_by_its_key_only(tmp_path: Path) -> None:
    folder = record_in(tmp_path, *ENTRIES)
    record = open_record(folder)
    assert [record.get(entry.key) for entry in ENTRIES] == ENTRIES
    assert record.get("0" * 32) is None
    assert record.get("f" * 32) is None
    assert len(record) == len(ENTRIES)
    assert record.digest == record_digest(folder) == folder.name
    assert record.location == str(folder)
    record.close()


def test_imported_search_is_also_found_by_its_words(tmp_path: Path) -> None:
    first = search_of("Capital of France?", provider="import", text="Paris.")
    second = search_of("c++ language", provider="import", text="A language.")
    third = search_of("C, language", provider="import", text="Another one.")
    more = [search_of(f"imported {number}", provider="import", text=f"Text {number}.") for number in range(20)]
    loose = {entry.key: loose_key(entry.query) for entry in (first, second, third, *more)}
    record = open_record(record_in(tmp_path, first, second, third, *more, *SEARCHES, loose=loose))
    assert [record.loose(loose_key(f"Imported: {number}")) for number in range(20)] == more
    assert record.loose(loose_key("capital of FRANCE")) == first
    # Both are `c language` by their words.
    assert record.loose(loose_key("C Language")) == min(second, third, key=lambda entry: entry.key)
    assert record.loose(loose_key("query 3")) is None
    assert {entry.key: key for entry, key in record.entries() if key} == loose
    assert [entry.key for entry, _ in record.entries()] == sorted(
        e.key for e in (first, second, third, *more, *SEARCHES)
    )


def test_empty_record_is_valid(tmp_path: Path) -> None:
    record = open_record(record_in(tmp_path))
    assert record.get("0" * 32) is None
    assert list(record.entries()) == []
    record.close()


def test_record_is_unpacked_once(tmp_path: Path) -> None:
    folder = record_in(tmp_path, *ENTRIES)
    open_record(folder).close()
    for part in folder.glob("data/*.parquet"):
        part.unlink()
    assert open_record(str(folder)).get(FAILED.key) == FAILED


def test_recently_used_records_stay_unpacked_and_open_ones_readable(tmp_path: Path, cache: Path) -> None:
    folders = [record_in(tmp_path, entry) for entry in ENTRIES[: KEPT_RECORDS + 1]]
    first = open_record(folders[0])
    for folder in folders[1:-1]:
        open_record(folder).close()
    for used_at, folder in enumerate(folders[:-1]):
        os.utime(cache / folder.name, (used_at, used_at))
    open_record(folders[0]).close()
    open_record(folders[-1]).close()
    there = {path.name for path in cache.iterdir() if path.is_dir()}
    assert there == {folder.name for folder in (folders[0], *folders[2:])}
    (cache / folders[0].name / "bodies.bin").unlink()
    assert first.get(ENTRIES[0].key) == ENTRIES[0]


def test_leftovers_of_a_killed_unpacking_are_not_a_record(tmp_path: Path, cache: Path) -> None:
    folder = record_in(tmp_path, *ENTRIES)
    half = cache / f".tmp-{folder.name}"
    half.mkdir(parents=True)
    (half / "index.bin").write_bytes(b"half")
    assert open_record(folder).get(FAILED.key) == FAILED
    assert not half.exists()


def test_invalid_record_is_refused_with_the_command_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="has no artifact.json; `treadle export web_record --run <run>` makes one"):
        open_record(tmp_path)
    with pytest.raises(ArtifactError, match="no such folder; if it was moved, name its new place"):
        record_digest(tmp_path / "missing")
    folder = record_in(tmp_path, *ENTRIES)
    manifest = (folder / "artifact.json").read_text()
    for old, new, why in [
        ('"web_record"', '"rollouts"', "holds rollouts, no web record"),
        ('"schema_version": 1', '"schema_version": 7', "in version 7; this Treadle reads version 1"),
        (folder.name, "0" * 16, "its file list does not match its digest"),
        ("{", "", "artifact.json is damaged"),
    ]:
        (folder / "artifact.json").write_text(manifest.replace(old, new, 1))
        with pytest.raises(ArtifactError, match=why):
            open_record(folder)


def test_vanished_record_is_recognised_only_by_its_name(tmp_path: Path) -> None:
    folder = record_in(tmp_path, *ENTRIES)
    folder.rename(tmp_path / "elsewhere")
    assert record_digest(folder) == folder.name
    with pytest.raises(ArtifactError, match="no such folder"):
        open_record(folder)
    for name in ("elsewhere2", folder.name[:-1], folder.name.upper() + "F"):
        with pytest.raises(ArtifactError, match="no such folder"):
            record_digest(tmp_path / name)
    # Half of the text contains nothing of the other half.
    folder.mkdir()
    with pytest.raises(ArtifactError, match="has no artifact.json"):
        record_digest(folder)


def test_changed_record_is_refused_and_not_unpacked(tmp_path: Path, cache: Path) -> None:
    folder = record_in(tmp_path, *ENTRIES)
    part = folder / "data/part-00000.parquet"
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    with pytest.raises(ArtifactError, match=r"part-00000\.parquet has changed since it was written"):
        open_record(folder)
    part.unlink()
    with pytest.raises(ArtifactError, match=r"part-00000\.parquet is missing: copy the whole folder"):
        open_record(folder)
    assert [path for path in cache.iterdir() if path.is_dir()] == []


@pytest.mark.parametrize(
    "change",
    [
        {"hits": "[1]"}, {"hits": "{"}, {"hits": None}, {"key": "../x"}, {"key": None}, {"kind": "other"},
        {"request": None}, {"text": 5}, {"recorded_at": None}, {"hits": '[{"title": 1, "url": "", "snippet": ""}]'},
    ],
)  # fmt: skip
def test_impossible_row_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ArtifactError, match="cannot be read|unknown kind"):
        entry_of({**row_of(SEARCHES[0]), **change})


def test_table_with_other_columns_is_refused(tmp_path: Path) -> None:
    columns = pa.schema([pa.field("key", pa.string(), metadata={"doc": "key"})])
    writer = ArtifactWriter(LocalStorage(tmp_path), Table("web_record", 1, ("key",), columns, "x"), made_by="")
    writer.write([{"key": "0" * 32}])
    ref = writer.commit()
    assert pq.read_schema(tmp_path / ref.folder / "data/part-00000.parquet").names != WEB_RECORD.schema.names
    with pytest.raises(ArtifactError, match="a row of a web record cannot be read"):
        open_record(tmp_path / ref.folder)


def with_table(folder: Path, change: Callable[[pa.Table], pa.Table], **options: Any) -> Path:
    """Return the record with another table, its digests right."""
    part = folder / "data/part-00000.parquet"
    pq.write_table(change(pq.read_table(part)), part, compression="zstd", **options)
    return sealed(folder)


def repeated(text: str, column: str = "text") -> Callable[[pa.Table], pa.Table]:
    """Give each row the same text; a file holds it once."""

    def change(table: pa.Table) -> pa.Table:
        values = pa.DictionaryArray.from_arrays(pa.array([0] * len(table), pa.int32()), pa.array([text]))
        return table.set_column(table.schema.names.index(column), column, values)

    return change


def test_texts_up_to_their_limits_are_read_from_a_foreign_table(tmp_path: Path) -> None:
    widest = "\U0001f600" * MAX_TEXT_CHARS
    folder = with_table(record_in(tmp_path, *ENTRIES), repeated(widest), store_schema=False)
    record = open_record(folder)
    assert len(record) == len(ENTRIES)
    assert all(entry.text == widest for entry, _ in record.entries())


@pytest.mark.parametrize("column", ["text", "hits", "request"])
def test_small_file_that_expands_to_long_values_is_refused(tmp_path: Path, cache: Path, column: str) -> None:
    folder = record_in(tmp_path, *ENTRIES)
    with_table(folder, repeated("x" * (8 << 20), column), store_schema=False)
    assert (folder / "data/part-00000.parquet").stat().st_size < 20_000
    with pytest.raises(ArtifactError, match=f"a value of column {column} has 8,388,608 bytes, more than"):
        open_record(folder)
    assert [path for path in cache.iterdir() if path.is_dir()] == []


def test_small_artifact_cannot_fill_the_disk(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_folder, "_ALWAYS_UNPACKED_BYTES", 0)
    monkeypatch.setattr(record_folder, "_MAX_GROWTH", 10)
    noise = random.Random(1).randbytes(MAX_TEXT_CHARS // 2).hex()
    folder = with_table(record_in(tmp_path, *ENTRIES), repeated(noise), store_schema=False)
    with pytest.raises(ArtifactError, match="decompresses to more than"):
        open_record(folder)
    assert [path for path in cache.iterdir() if path.is_dir()] == []
    monkeypatch.setattr(record_folder, "_MAX_GROWTH", 100)
    assert len(open_record(folder)) == len(ENTRIES)


def test_manifest_with_another_size_is_refused(tmp_path: Path) -> None:
    folder = record_in(tmp_path, *ENTRIES)
    manifest = folder / "artifact.json"
    size = (folder / "data/part-00000.parquet").stat().st_size
    told = manifest.read_text()
    manifest.write_text(told.replace(f'"num_bytes": {size}', f'"num_bytes": {size * 1000}'))
    assert manifest.read_text() != told
    with pytest.raises(ArtifactError, match="has changed since it was written"):
        open_record(folder)


@pytest.mark.parametrize("values", [[3], [["x"]], [{"x": 1}], [b"x"]], ids=["number", "list", "object", "bytes"])
def test_non_text_column_is_refused(tmp_path: Path, values: list[Any]) -> None:
    def change(table: pa.Table) -> pa.Table:
        return table.set_column(table.schema.names.index("text"), "text", pa.array(values * len(table)))

    with pytest.raises(ArtifactError, match=r"column text is .*, not text"):
        open_record(with_table(record_in(tmp_path, *ENTRIES), change))


def test_damaged_unpacked_record_is_named(tmp_path: Path, cache: Path) -> None:
    folder = record_in(tmp_path, *ENTRIES)
    open_record(folder).close()
    (cache / folder.name / "bodies.bin").write_bytes(b"")
    with pytest.raises(ArtifactError, match=f"{folder.name} is damaged: .*remove it"):
        open_record(folder).get(FAILED.key)


def test_files_of_an_open_record_can_be_released(tmp_path: Path) -> None:
    record: RecordFolder = open_record(record_in(tmp_path, *ENTRIES))
    record.close()
    with pytest.raises(ValueError, match="closed"):
        record.get(FAILED.key)


def test_unsorted_record_is_refused(tmp_path: Path) -> None:
    writer = ArtifactWriter(LocalStorage(tmp_path), WEB_RECORD, made_by="")
    writer.write([row_of(entry) for entry in sorted(ENTRIES, key=lambda entry: entry.key, reverse=True)])
    ref = writer.commit()
    with pytest.raises(ArtifactError, match="is not sorted by key"):
        open_record(tmp_path / ref.folder)


def test_one_of_concurrent_openers_unpacks_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, unpackings = record_in(tmp_path, *ENTRIES), list[Path]()
    unpack = record_folder._write_unpacked

    def counted(storage: Storage, manifest: Manifest, into: Path) -> None:
        unpackings.append(into)
        unpack(storage, manifest, into)

    monkeypatch.setattr(record_folder, "_write_unpacked", counted)
    together = threading.Barrier(4)

    def opened(number: int) -> Entry | None:
        together.wait()
        return open_record(folder).get(ENTRIES[number].key)

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(opened, range(4))) == ENTRIES[:4]
    assert len(unpackings) == 1
