"""A web record whose table has false sizes is read in full or refused in one line that names it."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tables.parquet_footers import Struct, change_footer, change_page, columns_of, set_number
from support.web.web_entries import page_of, record_in, sealed, search_of

from treadle.core.errors import ArtifactError
from treadle.core.store.roots import open_storage
from treadle.web.record import folder as record_folder
from treadle.web.record.folder import open_record, record_manifest

ENTRIES = [search_of(f"query {n}") for n in range(20)] + [
    page_of(f"http://s.test/{n}", f"T {n}. " * n) for n in range(20)
]
HUGE, MOST = 2**62, 2**31 - 1
FILE_ROWS, GROUP_ROWS = 3, 3
VALUES, PACKED, DATA_AT, SIZES, LEVELS = 5, 7, 9, 16, 3
PAGE_UNPACKED, DATA_PAGE, DICTIONARY_PAGE, NUM_VALUES = 2, 5, 7, 1
Change = Callable[[Path], None]


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TREADLE_CACHE", str(tmp_path / "cache"))


def rows(number: int) -> Change:
    return lambda part: change_footer(part, lambda footer: set_number(footer, FILE_ROWS, number))


def group(field: int, number: int) -> Change:
    return lambda part: change_footer(part, lambda footer: set_number(footer[4][1][1][0], field, number))


def column(field: int, number: int) -> Change:
    return lambda part: change_footer(part, lambda footer: set_number(columns_of(footer)["text"], field, number))


def page(field: int, number: int, *, of: int | None = None, dictionary: bool = False) -> Change:
    def change(header: Struct) -> None:
        set_number(header if of is None else header[of][1], field, number)

    return lambda part: change_page(part, "text", change, dictionary=dictionary)


def everywhere(number: int) -> Change:
    """Set the number of rows everywhere in a footer."""

    def change(part: Path) -> None:
        rows(number)(part)
        group(GROUP_ROWS, number)(part)
        change_footer(part, lambda footer: [set_number(one, VALUES, number) for one in columns_of(footer).values()])

    return change


def levels(part: Path) -> None:
    """Build a footer of which some views in pyarrow 26.0 crash the process."""

    def lengthen(footer: Struct) -> None:
        kind, values = columns_of(footer)["text"][SIZES][1][LEVELS][1]
        values.append(1)
        assert kind == 6

    change_footer(part, lengthen)


FULL, MEMORY, FEW = "", "reading it takes more memory than 2 GiB", r"has 3 rows instead of 40"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        pytest.param(group(GROUP_ROWS, HUGE), FULL, id="group-rows-many"),
        pytest.param(group(GROUP_ROWS, 3), "its footer says 40 rows, and it has 3", id="group-rows-few"),
        pytest.param(everywhere(10**9), "its footer says 1,000,000,000 rows, and it has 40", id="all-rows-many"),
        pytest.param(everywhere(3), FEW, id="all-rows-few"),
        pytest.param(column(VALUES, 3), FULL, id="values-few"),
        pytest.param(column(PACKED, HUGE), "Invalid column metadata", id="packed-many"),
        pytest.param(column(DATA_AT, -3), "Invalid column metadata", id="place-before-the-file"),
        pytest.param(page(PAGE_UNPACKED, MOST), MEMORY, id="page-unpacks-to-much"),
        pytest.param(page(NUM_VALUES, MOST, of=DATA_PAGE), "do not match num_values", id="page-has-many-values"),
        pytest.param(
            page(NUM_VALUES, MOST, of=DICTIONARY_PAGE, dictionary=True), MEMORY, id="dictionary-has-many-values"
        ),
        pytest.param(levels, "histogram size mismatch", id="levels"),
    ],
)
def test_inconsistent_table_is_read_in_full_or_refused_in_one_line(tmp_path: Path, change: Change, why: str) -> None:
    folder = record_in(tmp_path, *ENTRIES)
    change(folder / "data/part-00000.parquet")
    sealed(folder)
    if why == FULL:
        record = open_record(folder)
        assert [record.get(entry.key) for entry in ENTRIES] == ENTRIES
        return
    with pytest.raises(ArtifactError, match=why) as raised:
        open_record(folder)
    assert str(raised.value).startswith(str(folder)) and "\n" not in str(raised.value)


@given(st.data())
@settings(max_examples=6, deadline=None)
def test_table_with_any_bytes_is_read_or_refused(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = record_in(Path(name), *ENTRIES[::4])
        part = folder / "data/part-00000.parquet"
        content = bytearray(part.read_bytes())
        footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
        for _ in range(data.draw(st.integers(1, 4))):
            begin = data.draw(st.sampled_from([0, footer]))
            content[data.draw(st.integers(begin, len(content) - 1))] = data.draw(st.integers(0, 255))
        part.write_bytes(content)
        sealed(folder)
        storage = open_storage(folder)
        with contextlib.suppress(ArtifactError):
            list(record_folder._rows(storage, record_manifest(storage)))
