"""Files of others: the same rows as by direct reading, and hostile files end in one line and little memory."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tables.parquet_footers import change_footer, change_page, columns_of, set_number

from treadle.core.errors import DataError
from treadle.core.untrusted import confined_rows, row_frames
from treadle.core.untrusted.confined_rows import UnreadableInput, read_parquet
from treadle.core.untrusted.input_files import file_sha256, read_rows
from treadle.datagen.questions import source_rows as question_rows
from treadle.datagen.questions.source_rows import source_rows
from treadle.datagen.questions.sources import SourceSettings

MIB = 2**20


def rows_of(path: Path) -> list[dict[str, Any] | None]:
    return [row.value for row in read_rows(path)]


_VALUES = st.one_of(st.none(), st.text(max_size=5))
_COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "text": (pa.string(), _VALUES),
    "coded": (pa.dictionary(pa.int32(), pa.string()), _VALUES),
    "large": (pa.large_string(), _VALUES),
    "bytes": (pa.binary(), st.binary(max_size=4)),
    "number": (pa.int64(), st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))),
    "share": (pa.float64(), st.floats(allow_nan=False)),
    "texts": (pa.list_(pa.string()), st.one_of(st.none(), st.lists(_VALUES, max_size=3))),
    "pair": (pa.list_(pa.int8(), 2), st.one_of(st.none(), st.tuples(st.just(1), st.just(2)).map(list))),
    "object": (
        pa.struct({"a": pa.int32(), "b": pa.list_(pa.struct({"c": pa.string()}))}),
        st.one_of(st.none(), st.just({"a": 1, "b": [{"c": "x"}, None, {"c": None}]}), st.just({"a": None, "b": None})),
    ),
    "map": (pa.map_(pa.string(), pa.int32()), st.lists(st.tuples(st.text(max_size=2), st.just(3)), max_size=2)),
    "time": (pa.timestamp("us", "UTC"), st.datetimes().map(lambda found: found)),
    "nothing": (pa.null(), st.none()),
}


@given(st.data())
@settings(max_examples=6, deadline=None)
def test_confined_rows_equal_directly_read_rows(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(_COLUMNS)), min_size=1, unique=True))
    num_rows = data.draw(st.integers(1, 600))
    row = st.tuples(*(_COLUMNS[name][1] for name in names))
    few = data.draw(st.lists(row, min_size=1, max_size=8))
    rows = [few[place * 7 % len(few)] for place in range(num_rows)]
    arrays = [pa.array([row[place] for row in rows], _COLUMNS[name][0]) for place, name in enumerate(names)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.parquet"
        codec = data.draw(st.sampled_from(["none", "snappy", "gzip", "zstd", "lz4", "brotli"]))
        pq.write_table(pa.table(arrays, names), path, compression=codec, row_group_size=100)
        assert rows_of(path) == pq.read_table(path).to_pylist()


def repeated(path: Path) -> None:
    """20,000 rows of one text of 1 MB, as a dictionary with one entry."""
    values = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), pa.array(["x" * 10**6]))
    pq.write_table(pa.table({"question": values}), path, store_schema=False, compression="zstd")


def long_list(path: Path) -> None:
    """Write a row with a list of 2 million bits, for which Python needs 16 MB."""
    bits = pa.repeat(pa.scalar(True), 2_000_000)
    lists = pa.ListArray.from_arrays(pa.array([0, len(bits)], pa.int32()), bits)
    pq.write_table(pa.table({"question": lists}), path, compression="zstd")


def huge_page(path: Path) -> None:
    pq.write_table(pa.table({"question": ["x"]}), path, compression="zstd", use_dictionary=False)
    change_page(path, "question", lambda header: set_number(header, 2, 2**31 - 1))


def huge_footer(path: Path) -> None:
    pq.write_table(pa.table({"question": ["x"]}), path)
    change_footer(path, lambda footer: set_number(columns_of(footer)["question"], 7, 2**62))


def many_rows(path: Path) -> None:
    pq.write_table(pa.table({"question": ["x"]}), path)

    def change(footer: Any) -> None:
        set_number(footer, 3, 2**40)
        set_number(footer[4][1][1][0], 3, 2**40)
        set_number(columns_of(footer)["question"], 5, 2**40)

    change_footer(path, change)


def deep(path: Path) -> None:
    kind: pa.DataType = pa.int32()
    for _ in range(60):
        kind = pa.struct([pa.field("a", kind)])
    pq.write_table(pa.table({"question": pa.nulls(1, kind)}), path)


def truncated(path: Path) -> None:
    pq.write_table(pa.table({"question": ["x" * 100] * 100}), path)
    path.write_bytes(path.read_bytes()[:-20])


def not_parquet(path: Path) -> None:
    path.write_bytes(b"PAR1 and nothing else PAR1")


HOSTILE: list[tuple[Any, str]] = [
    (repeated, " memory "),
    (huge_page, "reading it takes more memory than 2 GiB"),
    (many_rows, "its footer says 1,099,511,627,776 rows, and it has 1"),
    (huge_footer, "Invalid column metadata"),
    (deep, "more than 32 nested levels"),
    (truncated, "is not a readable parquet file"),
    (not_parquet, "is not a readable parquet file"),
]


@pytest.mark.parametrize(("make", "why"), HOSTILE, ids=[make.__name__ for make, _ in HOSTILE])
def test_hostile_file_is_refused_in_one_line_without_parent_memory(
    tmp_path: Path, make: Callable[[Path], None], why: str
) -> None:
    path = tmp_path / "a.parquet"
    make(path)
    # In a process of its own, which has not had the memory with which the file was made. `ru_maxrss` would tell of the
    # memory of the process that it was forked from, too.
    script = (
        "import re, sys; from pathlib import Path\n"
        "from treadle.core.errors import DataError; from treadle.core.untrusted.input_files import read_rows\n"
        "try: print(sum(1 for _ in read_rows(Path(sys.argv[1]))))\n"
        "except DataError as error: print(error)\n"
        "print(re.search(r'VmHWM:\\s+(\\d+) kB', Path('/proc/self/status').read_text())[1])\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    *said, peak_kib = done.stdout.splitlines()
    assert len(said) == 1 and said[0].startswith(f"input file {path} ") and why in said[0]
    assert int(peak_kib) * 1024 < 600 * MIB


def test_large_row_group_is_not_held_in_memory_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"question": pa.repeat(pa.scalar("x" * 1000), 192_000)})
    pq.write_table(table, path, compression="none", use_dictionary=False, row_group_size=len(table))
    assert pq.read_metadata(path).num_row_groups == 1
    # Libraries take some 300 MiB of it.
    monkeypatch.setattr(confined_rows, "MEMORY_LIMIT_BYTES", 420 * MIB)
    with path.open("rb") as file:
        assert sum(getattr(batch, "num_rows", 0) for batch in read_parquet(file)) == len(table)


def test_oversized_row_and_non_text_row_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = pa.array([b"good", b"x" * (70 * MIB), b"caf\xe9", b"last"]).view(pa.string())
    pq.write_table(pa.table({"question": texts}), path, compression="zstd")
    found = list(read_rows(path))
    assert [(row.number, row.value and row.value["question"], row.reason) for row in found] == [
        (1, "good", ""), (2, None, "too_long"), (3, None, "not_utf8"), (4, "last", "")
    ]  # fmt: skip
    assert found[2].raw == "caf\N{REPLACEMENT CHARACTER}"
    long_list(path)
    assert [row.reason for row in read_rows(path)] == ["too_long"]


def test_many_small_values_of_a_small_file_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": pa.repeat(pa.scalar(1, pa.int8()), 1_000_000)}), path, compression="zstd")
    assert path.stat().st_size < 5_000
    with path.open("rb") as file:
        num_rows = 0
        with pytest.raises(UnreadableInput, match="too much memory for a file of its size"):
            for batch in read_parquet(file, max_unpacked_bytes=MIB):
                num_rows += getattr(batch, "num_rows", 0)
    assert 10_000 < num_rows < 17_000


def test_repetitive_but_valid_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    row = pa.scalar([1] * 4096, pa.list_(pa.int8()))
    pq.write_table(pa.table({"a": range(4000), "attention_mask": pa.repeat(row, 4000)}), path, compression="zstd")
    assert path.stat().st_size < 100_000
    assert sum(1 for _ in read_rows(path)) == 4000
    with pytest.raises(DataError, match="too much memory for a file of its size"):
        list(read_rows(path, max_unpacked_bytes=64 * MIB))
    named = read_rows(path, columns=["a", "b"], max_unpacked_bytes=2 * MIB)
    assert [row.value for row in named] == [{"a": number} for number in range(4000)]
    assert next(read_rows(path, columns=["b"])).value == {"a": 0, "attention_mask": [1] * 4096}


@pytest.mark.parametrize(
    "code",
    [
        "schema = pa.schema({'a': pa.int8()}).serialize()\nwhile True: send(SCHEMA, schema)",
        "batch = pa.record_batch([pa.array([], pa.int8())], ['a'])\nsend(SCHEMA, batch.schema.serialize())\n"
        "while True: send(BATCH, batch.serialize())",
    ],
)
def test_child_that_sends_no_rows_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    said = taken_over(monkeypatch, tmp_path, _SEND + code, max_unpacked_bytes=MIB)
    assert "too much memory for a file of its size" in said


def test_list_views_uuids_and_short_booleans_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    lists = [[number, None] if number % 3 else None for number in range(2000)]
    ids = [uuid.UUID(int=number) for number in range(2000)]
    id_array = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([id_.bytes for id_ in ids], pa.binary(16)))
    columns = {
        "view": pa.array(lists, pa.list_view(pa.int64())),
        "views": pa.array(
            [{"a": [one]} for one in lists], pa.struct({"a": pa.large_list_view(pa.list_view(pa.int32()))})
        ),
        "id": id_array,
        "ids": pa.ListArray.from_arrays(pa.array(range(2001), pa.int32()), id_array),
        "flag": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([0, 1, None, 1] * 500, pa.int8())),
    }
    pq.write_table(pa.table(columns), path)
    assert rows_of(path) == [
        {"view": one, "views": {"a": [one]}, "id": str(id_), "ids": [str(id_)], "flag": flag}
        for one, id_, flag in zip(lists, ids, [False, True, None, True] * 500, strict=True)
    ]


def test_value_without_a_python_type_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"day": pa.array([0, 2**31 - 1], pa.int32()).view(pa.date32())}), path)
    assert [row.reason for row in read_rows(path)] == ["", "bad_value"]


def test_symlinks_are_followed_and_pipes_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    (tmp_path / "link.parquet").symlink_to("a.parquet")
    assert rows_of(tmp_path / "link.parquet") == [{"a": 1}]
    (tmp_path / "circle.parquet").symlink_to("circle.parquet")
    with pytest.raises(DataError, match=r"circle\.parquet cannot be read: .*symbolic links"):
        rows_of(tmp_path / "circle.parquet")
    os.mkfifo(tmp_path / "pipe.parquet")
    with pytest.raises(DataError, match=r"pipe\.parquet is not a regular file"):
        rows_of(tmp_path / "pipe.parquet")
    with pytest.raises(DataError, match=r"pipe\.parquet is not a regular file"):
        file_sha256(tmp_path / "pipe.parquet")


def test_child_has_no_files_or_keys_and_ends_with_its_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_API_KEY", "secret")
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": list(range(300_000))}), path)
    with path.open("rb") as file:
        batches = read_parquet(file)
        next(batches)
        (child,) = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and _parent(pid) == os.getpid()
                    and b"parquet_worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]  # fmt: skip
        status = Path(f"/proc/{child}/status").read_text()
        assert "Seccomp:\t2" in status and "NoNewPrivs:\t1" in status and "CapEff:\t0000000000000000" in status
        assert resource.prlimit(child, resource.RLIMIT_AS)[1] == confined_rows.MEMORY_LIMIT_BYTES
        assert b"secret" not in Path(f"/proc/{child}/environ").read_bytes()
        batches.close()
    assert not Path(f"/proc/{child}").exists()


def _parent(pid: str) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def taken_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, python_path: str | None = None, **bound: int
) -> str:
    """Return the message for a child that does something else."""
    (tmp_path / "other.py").write_text(
        f"import os, sys, time\nfrom treadle.core.untrusted.row_frames import *\n"
        f"from treadle.core.untrusted.worker_frames import HEAD\n{code}\n"
    )
    monkeypatch.setattr(confined_rows, "_PARQUET", "other")
    monkeypatch.setenv("PYTHONPATH", python_path or str(tmp_path))
    path = tmp_path / "a.parquet"
    path.write_bytes(b"")
    with path.open("rb") as file, pytest.raises(UnreadableInput) as raised:
        list(read_parquet(file, **bound))
    return str(raised.value)


_SEND = (
    "out = sys.stdout.buffer\ndef send(kind, data): out.write(HEAD.pack(kind, len(data)) + bytes(data)); out.flush()\n"
)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("print('x' * 100)", "sent invalid data"),
        (_SEND + "out.write(HEAD.pack(BATCH, 2**31))", "sent invalid data"),
        (_SEND + "send(BATCH, b'')", "sent invalid data: unexpected frame"),
        (
            _SEND + "send(SCHEMA, pa.schema({'a': pa.dictionary(pa.int8(), pa.string())}).serialize())",
            "sent invalid data",
        ),
        (
            _SEND + "offsets = pa.array([0, 2**31 - 1, 1], pa.int32()).buffers()[1]\n"
            "bad = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b'x'))\n"
            "batch = pa.record_batch([bad], ['a'])\nsend(SCHEMA, batch.schema.serialize())\n"
            "data = batch.serialize().to_pybytes()\nsend(BATCH, data)",
            "sent invalid data",
        ),
        (
            _SEND + "batch = pa.record_batch([pa.nulls(10**8)], ['a'])\n"
            "send(SCHEMA, batch.schema.serialize())\nsend(BATCH, batch.serialize())",
            "sent invalid data: too large a batch",
        ),
        (
            _SEND + "batch = pa.RecordBatch.from_struct_array(pa.array([{}] * 10**7, pa.struct([])))\n"
            "send(SCHEMA, batch.schema.serialize())\nsend(BATCH, batch.serialize())",
            "sent invalid data: too large a batch",
        ),
        ("os.abort()", f"failed with code -{signal.SIGABRT:d}"),
        ("os.kill(os.getpid(), 9)", "the reader process was killed"),
        (_SEND + "send(PROBLEM, b'one\\n\\x1b[31mtwo')", "one"),
    ],
)
def test_child_output_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, why: str) -> None:
    said = taken_over(monkeypatch, tmp_path, code)
    assert why in said and "\n" not in said and "\x1b" not in said


def test_relative_python_path_is_resolved_against_the_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "another.py").write_text("")
    monkeypatch.chdir(tmp_path)
    code = _SEND + "import another\nsend(PROBLEM, b'found')"
    assert taken_over(monkeypatch, tmp_path, code, python_path=f"here{os.pathsep}") == "found"


def test_silent_child_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confined_rows, "_SILENCE_S", 0.0)
    assert "sent nothing for 0 seconds" in taken_over(monkeypatch, tmp_path, "time.sleep(60)")


def test_dataset_folder_is_read_with_a_memory_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(question_rows, "_DATASETS_MEMORY_BYTES", 3 * 2**30)
    source = SourceSettings(path=tmp_path, domain="qa")
    (tmp_path / "train.jsonl").write_text('{"question": "Why?", "answer": ["x", null], "n": 1}\n' * 300)
    assert [row.number for row in source_rows(source)] == list(range(1, 301))
    assert next(iter(source_rows(source))).value == {"question": "Why?", "answer": ["x", None], "n": 1}
    (tmp_path / "train.jsonl").unlink()
    repeated(tmp_path / "train.parquet")
    with pytest.raises(DataError, match=r"^data set \S+ cannot be read: .* memory [^\n]*$"):
        list(source_rows(source))


def test_batch_cost_counts_every_value(tmp_path: Path) -> None:
    lists = pa.record_batch({"a": pa.array([[True] * 1000, None, []])})
    assert row_frames.cost(lists) >= 1003 * row_frames.CELL_COST
    assert row_frames.cost(lists.slice(1)) < 3 * row_frames.CELL_COST
    assert json.dumps(lists.slice(1).to_pylist()) == '[{"a": null}, {"a": []}]'
