"""A web record whose table lies of its sizes: one error that names it, and no memory for what is not there."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.parquet_footers import Struct, change_footer, change_page, columns_of, set_number
from support.web_entries import page_of, record_in, sealed, search_of

from treadle.agent.web import record_folder
from treadle.agent.web.record_folder import open_record, record_manifest
from treadle.core.errors import ArtifactError
from treadle.core.storage import open_storage

ENTRIES = [search_of(f"query {n}") for n in range(20)] + [
    page_of(f"http://s.test/{n}", f"T {n}. " * n) for n in range(20)
]
HUGE, MOST = 2**62, 2**31 - 1
FILE_ROWS, GROUP_BYTES, GROUP_ROWS = 3, 2, 3
VALUES, UNPACKED, PACKED, DATA_AT, SIZES, LEVELS = 5, 6, 7, 9, 16, 3
PAGE_UNPACKED, PAGE_PACKED, DATA_PAGE, DICTIONARY_PAGE, NUM_VALUES, ENCODING = 2, 3, 5, 7, 1, 2
Change = Callable[[Path], None]


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[pa.MemoryPool]:
    """What counts the memory that pyarrow takes, in place of its own."""
    monkeypatch.setenv("TREADLE_CACHE", str(tmp_path / "cache"))
    before = pa.default_memory_pool()
    pa.set_memory_pool(counting := pa.proxy_memory_pool(before))
    yield counting
    pa.set_memory_pool(before)


def rows(number: int) -> Change:
    return lambda part: change_footer(part, lambda footer: set_number(footer, FILE_ROWS, number))


def group(field: int, number: int) -> Change:
    return lambda part: change_footer(part, lambda footer: set_number(footer[4][1][1][0], field, number))


def column(field: int, number: int) -> Change:
    return lambda part: change_footer(part, lambda footer: set_number(columns_of(footer)["text"], field, number))


def page(field: int, number: int, *, of: int | None = None, dictionary: bool = False) -> Change:
    return lambda part: change_page(
        part,
        "text",
        lambda header: set_number(header if of is None else header[of][1], field, number),
        dictionary=dictionary,
    )


def everywhere(number: int) -> Change:
    """As many rows wherever a footer tells them."""

    def change(part: Path) -> None:
        rows(number)(part)
        group(GROUP_ROWS, number)(part)
        change_footer(part, lambda footer: [set_number(one, VALUES, number) for one in columns_of(footer).values()])

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        pytest.param(change, why, id=name)
        for name, change, why in [
            ("rows-many", rows(HUGE), "tells 4,611,686,018,427,387,904 rows, its row groups 40"),
            ("rows-less-than-none", rows(-5), "tells -5 rows, its row groups 40"),
            ("rows-few", rows(3), "tells 3 rows, its row groups 40"),
            ("group-rows-many", group(GROUP_ROWS, HUGE), "tells 40 rows, its row groups 4,611,686,018,427,387,904"),
            ("group-rows-less-than-none", group(GROUP_ROWS, -5), "tells 40 rows, its row groups -5"),
            ("group-rows-few", group(GROUP_ROWS, 3), "tells 40 rows, its row groups 3"),
            ("all-rows-many", everywhere(10**9), "a page of column key"),
            ("all-rows-few", everywhere(3), "column key has 40 values, and should have 3"),
            ("values-many", column(VALUES, HUGE), "what its footer says of column text cannot be"),
            ("values-less-than-none", column(VALUES, -1), "what its footer says of column text cannot be"),
            ("values-few", column(VALUES, 3), "what its footer says of column text cannot be"),
            ("packed-many", column(PACKED, HUGE), "what its footer says of column text cannot be"),
            ("packed-less-than-none", column(PACKED, -9), "what its footer says of column text cannot be"),
            ("packed-few", column(PACKED, 3), "a page of column text"),
            ("place-before-the-file", column(DATA_AT, -3), "what its footer says of column text cannot be"),
            ("page-unpacks-to-much", page(PAGE_UNPACKED, MOST), "row group 0 has 2,147,490,"),
            ("page-unpacks-to-less-than-nothing", page(PAGE_UNPACKED, -1), "a page of column text"),
            ("page-is-long", page(PAGE_PACKED, MOST), "a page of column text ends behind its column"),
            ("page-has-many-values", page(NUM_VALUES, MOST, of=DATA_PAGE), "has 2,147,483,647 values, and should have"),
            ("page-of-repeated-beginnings", page(ENCODING, 7, of=DATA_PAGE), "a page of column text is none that"),
            ("dictionary-unpacks-to-much", page(PAGE_UNPACKED, MOST, dictionary=True), "row group 0 has 2,147,48"),
            (
                "dictionary-has-many-values",
                page(NUM_VALUES, MOST, of=DICTIONARY_PAGE, dictionary=True),
                "the dictionary of column text tells more values than it has room for",
            ),
        ]
    ],
)
def test_a_table_that_lies_is_refused_in_one_line_and_takes_no_memory(
    tmp_path: Path, pool: pa.MemoryPool, change: Change, why: str
) -> None:
    folder = record_in(tmp_path, *ENTRIES)
    change(folder / "part-00000.parquet")
    before = pool.max_memory()
    with pytest.raises(ArtifactError) as raised:
        open_record(sealed(folder))
    said = str(raised.value)
    assert said.startswith(f"{folder}/part-00000.parquet cannot be read as a web record: ")
    assert why in said and "\n" not in said
    assert pool.max_memory() - before < 4 << 20


@pytest.mark.parametrize("change", [group(GROUP_BYTES, -1), group(GROUP_BYTES, 1), column(UNPACKED, HUGE)])
def test_sizes_that_nothing_goes_by_may_say_anything(tmp_path: Path, pool: pa.MemoryPool, change: Change) -> None:
    folder = record_in(tmp_path, *ENTRIES)
    change(folder / "part-00000.parquet")
    record = open_record(sealed(folder))
    assert [record.get(entry.key) for entry in ENTRIES] == ENTRIES
    assert pool.max_memory() < 4 << 20


def test_a_group_that_is_said_to_be_small_is_not_unpacked_to_see_it(
    tmp_path: Path, pool: pa.MemoryPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_folder, "_MAX_GROUP_BYTES", 1 << 20)
    folder = record_in(tmp_path, *ENTRIES)
    part = folder / "part-00000.parquet"
    table = pq.read_table(part)
    values = pa.DictionaryArray.from_arrays(pa.array([0] * len(table), pa.int32()), pa.array(["x" * (8 << 20)]))
    pq.write_table(table.set_column(table.schema.names.index("text"), "text", values), part, store_schema=False)
    assert part.stat().st_size < 1 << 20
    group(GROUP_BYTES, 1)(part)
    column(UNPACKED, 1)(part)
    del table, values
    before = pool.bytes_allocated()
    read = pa.proxy_memory_pool(pool)
    pa.set_memory_pool(read)
    with pytest.raises(ArtifactError, match=r"its row group 0 has 8,\d+,\d+ bytes, more than 1,048,576"):
        open_record(sealed(folder))
    assert read.max_memory() < 1 << 20 and before < 1 << 20


def test_what_the_medium_refuses_is_no_fault_of_the_table(
    tmp_path: Path, pool: pa.MemoryPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = record_in(tmp_path, *ENTRIES)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(record_folder, "check_pages", refuse)
    with pytest.raises(Exception, match=r"cannot read .*part-00000\.parquet: ") as raised:
        open_record(folder)
    assert type(raised.value).__name__ == "StorageError"


def test_a_footer_for_which_pyarrow_ends_the_process_is_one_error(tmp_path: Path, pool: pa.MemoryPool) -> None:
    def lengthen(footer: Struct) -> None:
        kind, values = columns_of(footer)["text"][SIZES][1][LEVELS][1]
        values.append(1)
        assert kind == 6

    folder = record_in(tmp_path, *ENTRIES)
    change_footer(folder / "part-00000.parquet", lengthen)
    with pytest.raises(ArtifactError, match=r"cannot be read as a web record: .*histogram"):
        open_record(sealed(folder))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_whatever_bytes_a_table_has_it_is_read_or_refused(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = record_in(Path(name), *ENTRIES[::4])
        part = folder / "part-00000.parquet"
        content = bytearray(part.read_bytes())
        footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
        for _ in range(data.draw(st.integers(1, 4))):
            begin = data.draw(st.sampled_from([0, footer]))
            content[data.draw(st.integers(begin, len(content) - 1))] = data.draw(st.integers(0, 255))
        part.write_bytes(content)
        sealed(folder)
        storage = open_storage(folder)
        with contextlib.suppress(ArtifactError):
            assert len(list(record_folder._rows(storage, record_manifest(storage)))) == len(ENTRIES[::4])
