"""Artifacts: named by their rows, checked when written and when read, loadable by common tools."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sweep import examples

from treadle.core.errors import ArtifactError
from treadle.core.store import parquet
from treadle.core.store.artifact_reader import ArtifactReader
from treadle.core.store.artifacts import ArtifactRef, ArtifactWriter, verify_artifact
from treadle.core.store.roots import open_storage
from treadle.core.store.storage import LocalStorage
from treadle.core.tables import TABLES, Table
from treadle.datagen.questions.tables import QUESTIONS
from treadle.environments.rollouts.tables import ROLLOUTS

THINGS = Table(
    "things",
    1,
    ("key",),
    pa.schema(
        [
            pa.field("key", pa.string(), nullable=False, metadata={"doc": "name"}),
            pa.field("count", pa.int32(), nullable=False),
            pa.field("ids", pa.list_(pa.int32()), nullable=False),
            pa.field("note", pa.string()),
        ]
    ),
    "Things.",
)


@pytest.fixture(autouse=True)
def _declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLES, THINGS.kind, THINGS)


def test_table_that_no_stage_produces_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = write(tmp_path, [thing(0)])
    monkeypatch.delitem(TABLES, THINGS.kind)
    with pytest.raises(ArtifactError, match="holds table things, which no stage produces"):
        ArtifactReader(open_storage(tmp_path), ref)


def thing(index: int, **other: Any) -> dict[str, Any]:
    return {"key": f"k{index}", "count": index, "ids": list(range(index % 7)), "note": None, **other}


def question(index: int) -> dict[str, Any]:
    return {
        "question_key": f"{index:016x}",
        "dataset": "world",
        "domain": "qa",
        "question": f"What is {index} — «naïve»?",
        "answers": [str(index)],
        "choices": [],
        "split": "train",
        "source_file": "a.jsonl",
        "source_row": index + 1,
        "meta": "{}",
        "format": None,
        "scorer": None,
        "search": None,
        "environment": "default",
        "payload": "{}",
    }


def write(root: Path, rows: list[dict[str, Any]], batch: int = 1000, table: Table = THINGS) -> ArtifactRef:
    writer = ArtifactWriter(open_storage(root), table, made_by="f" * 64)
    for start in range(0, len(rows), batch):
        writer.write(rows[start : start + batch])
    return writer.commit()


def test_rows_round_trip_in_order_with_their_types(tmp_path: Path) -> None:
    rows = [thing(index, note="ä\0" if index % 3 else None) for index in range(700)]
    ref = write(tmp_path, rows)
    reader = ArtifactReader(open_storage(tmp_path), ref)
    assert list(reader.rows()) == rows
    assert (reader.num_rows, reader.kind, reader.digest) == (700, "things", ref.digest)
    assert list(reader.rows(["key"])) == [{"key": row["key"]} for row in rows]
    assert sum(batch.num_rows for batch in reader.batches()) == 700


@settings(deadline=None, max_examples=examples(15))
@given(st.randoms(use_true_random=False))
def test_equal_rows_give_equal_bytes_regardless_of_batching(tmp_path_factory: Any, source: random.Random) -> None:
    rows = [thing(index, note="x" * source.randrange(50)) for index in range(source.randrange(600))]
    first = write(tmp_path_factory.mktemp("a"), rows)
    root = tmp_path_factory.mktemp("b")
    writer = ArtifactWriter(open_storage(root), THINGS, made_by="another")
    while rows:
        cut = source.randrange(1, 300)
        writer.write(rows[:cut])
        rows = rows[cut:]
    assert writer.commit() == first


def test_row_groups_and_parts_depend_only_on_row_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 100)
    monkeypatch.setattr(parquet, "PART_ROW_GROUPS", 2)
    rows = [thing(index) for index in range(1050)]
    refs = {write(tmp_path / str(batch), rows, batch).digest for batch in (1, 7, 256, 1050)}
    assert len(refs) == 1
    reader = ArtifactReader(open_storage(tmp_path / "7"), write(tmp_path / "7", rows))
    assert reader.file_names() == [f"data/part-{index:05d}.parquet" for index in range(6)]
    assert list(reader.rows()) == rows


def test_large_rows_end_a_row_group_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow.parquet as pq

    monkeypatch.setattr(parquet, "ROW_GROUP_BYTES", 10_000)
    ref = write(tmp_path, [thing(index, note="x" * 1000) for index in range(40)])
    metadata = pq.read_metadata(tmp_path / ref.folder / "data/part-00000.parquet")
    assert metadata.num_row_groups == 4


def test_different_rows_give_a_different_digest(tmp_path: Path) -> None:
    assert write(tmp_path, [thing(0)]).digest != write(tmp_path, [thing(1)]).digest


def test_equal_content_is_stored_once(tmp_path: Path) -> None:
    first = write(tmp_path, [thing(0)])
    assert write(tmp_path, [thing(0)]) == first
    assert [path.name for path in (tmp_path / "artifacts/things").iterdir()] == [first.digest]


def test_concurrently_written_equal_artifact_of_another_run_is_not_deleted(tmp_path: Path) -> None:
    other = ArtifactWriter(open_storage(tmp_path), THINGS, made_by="other")
    other.write([thing(0)])
    removed: list[str] = []

    class RacingStorage(LocalStorage):
        """The other run publishes right after the first look at the artifact's place."""

        def get(self, key: str) -> bytes | None:
            found = super().get(key)
            self.overtake()
            return found

        def keys(self, prefix: str) -> Iterator[str]:
            found = list(super().keys(prefix))
            self.overtake()
            return iter(found)

        def delete(self, key: str) -> None:
            removed.append(key)
            super().delete(key)

        def overtake(self) -> None:
            if list((tmp_path / "artifacts/things").glob("[0-9a-f]*")) == []:
                other.commit()

    ours = ArtifactWriter(RacingStorage(tmp_path), THINGS, made_by="ours")
    ours.write([thing(0)])
    ref = ours.commit()
    assert removed == []
    assert verify_artifact(open_storage(tmp_path), ref) == []


def test_table_without_rows_is_valid(tmp_path: Path) -> None:
    ref = write(tmp_path, [])
    assert ref.num_rows == 0
    assert list(ArtifactReader(open_storage(tmp_path), ref).rows()) == []


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (thing(1), "row 2: a row with key='k1' was written before"),
        ({"key": "a"}, "missing columns \\['count', 'ids', 'note'\\]"),
        (thing(2, extra=1), "unknown columns \\['extra'\\]"),
        (thing(2, count=None), "row 2 \\(key='k2'\\): column 'count' is null"),
        (thing(2, ids=[1, None]), "row 2 \\(key='k2'\\): a list in column 'ids' contains a null"),
        (thing(2, count="many"), "row 2: column 'count' does not fit int32"),
        (thing(2, count=2**40), "row 2: column 'count' does not fit int32"),
        (thing(2, note="a\ud800"), "row 2: column 'note' is text that cannot be encoded"),
        (thing(2, key="\udfff"), "row 2: column 'key' is text that cannot be encoded"),
    ],
)
def test_row_that_violates_the_schema_is_named(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(ArtifactError, match=f"table things, {message}" if "row" in message else message):
        write(tmp_path, [thing(1), row])


def test_extra_files_are_part_of_the_digest(tmp_path: Path) -> None:
    def make(content: bytes) -> ArtifactRef:
        writer = ArtifactWriter(open_storage(tmp_path), THINGS, made_by="f")
        writer.write([thing(0)])
        writer.add_file("report.md", content)
        return writer.commit()

    one, two = make(b"one"), make(b"two")
    assert one.digest != two.digest
    assert ArtifactReader(open_storage(tmp_path), two).read_file("report.md") == b"two"
    with pytest.raises(ArtifactError, match="has no file 'other.md'; it has data/part-00000.parquet, report.md"):
        ArtifactReader(open_storage(tmp_path), two).read_file("other.md")


@pytest.mark.parametrize("name", ["../x", "a/b", "artifact.json", "README.md", ".hidden", "data", "x.parquet", ""])
def test_extra_files_have_plain_names(tmp_path: Path, name: str) -> None:
    writer = ArtifactWriter(open_storage(tmp_path), THINGS, made_by="f")
    with pytest.raises(ArtifactError, match="cannot be used as a file name"):
        writer.add_file(name, b"")


def test_abandoned_artifact_leaves_nothing(tmp_path: Path) -> None:
    writer = ArtifactWriter(open_storage(tmp_path), THINGS, made_by="f")
    writer.write([thing(index) for index in range(5000)])
    writer.abandon()
    assert list((tmp_path / "artifacts/things").iterdir()) == []


def test_changed_and_missing_files_are_detected(tmp_path: Path) -> None:
    storage, ref = open_storage(tmp_path), write(tmp_path, [thing(0)])
    assert verify_artifact(storage, ref) == []
    part = tmp_path / ref.folder / "data/part-00000.parquet"
    part.write_bytes(part.read_bytes() + b"x")
    assert verify_artifact(storage, ref) == [f"{ref.folder}/data/part-00000.parquet has changed since it was written"]
    part.unlink()
    assert verify_artifact(storage, ref) == [f"{ref.folder}/data/part-00000.parquet is missing"]
    (tmp_path / ref.folder / "artifact.json").unlink()
    assert verify_artifact(storage, ref) == [f"artifact {ref.folder} is missing; rerun the stage that produces it"]


@pytest.mark.parametrize("lost", ["artifact.json", "data/part-00000.parquet"])
def test_rerun_repairs_a_damaged_artifact(tmp_path: Path, lost: str) -> None:
    ref = write(tmp_path, [thing(0)])
    (tmp_path / ref.folder / lost).unlink()
    assert write(tmp_path, [thing(0)]) == ref
    assert verify_artifact(open_storage(tmp_path), ref) == []


def test_truncation_or_bit_flip_is_named_before_any_row_is_read(tmp_path: Path) -> None:
    """Most flipped bits of a parquet file would read as other rows, or as none, without an error."""
    ref = write(tmp_path, [thing(index, note="note") for index in range(9)])
    path = tmp_path / ref.folder / "data/part-00000.parquet"
    content = path.read_bytes()
    flips = (content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :] for at in range(0, len(content), 7))
    for damaged in itertools.chain(flips, (content[:size] for size in range(0, len(content), 97))):
        path.write_bytes(damaged)
        with pytest.raises(
            ArtifactError, match=r"data/part-00000.parquet has changed since it was written; `treadle verif"
        ):
            next(ArtifactReader(open_storage(tmp_path), ref).rows())


def test_manifest_bit_flip_is_named_or_changes_no_row(tmp_path: Path) -> None:
    ref = write(tmp_path, [thing(0)])
    path = tmp_path / ref.folder / "artifact.json"
    content = path.read_bytes()
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << at % 7]) + content[at + 1 :])
        try:
            reader = ArtifactReader(open_storage(tmp_path), ref)
            assert (reader.manifest.ref(), list(reader.rows())) == (ref, [thing(0)])
        except ArtifactError as error:
            # A flipped version is refused as another version of the table.
            assert "artifact.json is damaged" in str(error) or "holds table things in version" in str(error)


@pytest.mark.parametrize("version", [2, 99])
def test_other_schema_version_is_refused_by_name(tmp_path: Path, version: int) -> None:
    ref = write(tmp_path, [question(0)], table=QUESTIONS)
    path = tmp_path / ref.folder / "artifact.json"
    path.write_bytes(orjson.dumps({**orjson.loads(path.read_bytes()), "schema_version": version}))
    with pytest.raises(
        ArtifactError, match=f"table questions in version {version}; this Treadle reads version {QUESTIONS.version}"
    ):
        ArtifactReader(open_storage(tmp_path), ref)


def test_hidden_columns_are_read_only_by_name(tmp_path: Path) -> None:
    reader = ArtifactReader(open_storage(tmp_path), write(tmp_path, [question(0)], table=QUESTIONS))
    whole, found = reader.rows(), reader.matching("dataset", lambda values: pc.equal(values, "world"))
    assert [list(row) for row in (next(whole), next(found).to_pylist()[0])] == [QUESTIONS.visible] * 2
    assert "payload" not in QUESTIONS.visible
    assert next(reader.rows(("payload",))) == {"payload": "{}"}
    named = reader.matching("dataset", lambda values: pc.equal(values, "world"), ("payload",))
    assert next(named).to_pylist() == [{"dataset": "world", "payload": "{}"}]


def test_files_contain_kind_and_version_and_nothing_volatile(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    ref = write(tmp_path, [question(0)], table=QUESTIONS)
    schema = pq.read_schema(tmp_path / ref.folder / "data/part-00000.parquet")
    assert schema.metadata == {b"treadle.kind": b"questions", b"treadle.schema_version": b"4"}
    assert schema.names == QUESTIONS.schema.names


def test_every_table_has_a_documented_column_list(tmp_path: Path) -> None:
    for table in TABLES.values():
        card = (tmp_path / write(tmp_path, [], table=table).folder / "README.md").read_text()
        for field in table.schema:
            assert f"| `{field.name}` | {field.type} |" in card


def test_pandas_polars_duckdb_and_datasets_load_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import duckdb
    import pandas
    import polars

    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    import datasets

    rows = [question(index) for index in range(300)]
    folder = tmp_path / write(tmp_path, rows, table=QUESTIONS).folder
    texts = [row["question"] for row in rows]
    assert pandas.read_parquet(folder / "data")["question"].to_list() == texts
    assert polars.read_parquet(folder / "data")["question"].to_list() == texts
    found = duckdb.sql(f"SELECT question FROM '{folder}/data/part-*.parquet' ORDER BY source_row").fetchall()
    assert [text for (text,) in found] == texts
    loaded = datasets.load_dataset(str(folder), split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded["question"][:] == texts
    assert loaded.column_names == ROWS_OF_QUESTIONS


ROWS_OF_QUESTIONS = QUESTIONS.schema.names


def test_rollout_row_round_trips(tmp_path: Path) -> None:
    values = {pa.string(): "x", pa.int32(): 1, pa.int64(): 2, pa.bool_(): True, pa.float64(): 0.5}
    sample = {
        "prompt_ids": [1, 2],
        "training_prompt_ids": None,
        "ids": [3, 4],
        "origins": [1, 0],
        "turn_starts": [0],
        "spans": [{"role": "assistant", "start": 0, "end": 1}, {"role": "result", "start": 1, "end": 2}],
    }
    row = {field.name: values.get(field.type, []) for field in ROLLOUTS.schema}
    row |= {"samples": [sample, sample | {"training_prompt_ids": [1]}], "turn_rewards": [0.5, None], "error": None}
    ref = write(tmp_path, [row], table=ROLLOUTS)
    assert list(ArtifactReader(open_storage(tmp_path), ref).rows()) == [row]
