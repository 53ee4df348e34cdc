"""Artifacts and runs on an object root: the tests of the local one again, and what a store without renames adds."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.core.runs.test_run import (  # noqa: F401
    test_different_semantic_config_is_refused_with_its_keys,
    test_instances_without_an_attempt_are_absent,
    test_missing_run_error_lists_existing_runs,
)
from unit.core.store.test_artifacts import (  # noqa: F401 - the same tests, on the root of this file
    _declared,
    test_different_rows_give_a_different_digest,
    test_extra_files_are_part_of_the_digest,
    test_extra_files_have_plain_names,
    test_row_groups_and_parts_depend_only_on_row_counts,
    test_row_that_violates_the_schema_is_named,
    test_rows_round_trip_in_order_with_their_types,
    test_table_without_rows_is_valid,
    thing,
    write,
)

from treadle.core.errors import ArtifactError, StorageError
from treadle.core.store.artifact_reader import ArtifactReader
from treadle.core.store.artifacts import artifact_exists, verify_artifact
from treadle.core.store.object_storage import ObjectStorage
from treadle.core.store.roots import open_storage

ROWS = [thing(index) for index in range(10)]


@pytest.fixture
def tmp_path(object_root: str) -> Path:
    """Return the root of the borrowed tests: `open_storage` recognises a URL converted through a Path."""
    return Path(object_root)


def test_leftovers_of_a_killed_publication_are_ignored_and_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(*_: object) -> bool:
        raise StorageError("killed before the manifest")

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStorage, "put", cut_off)
        patch.setattr(ObjectStorage, "put_if", cut_off)
        with pytest.raises(StorageError):
            write(tmp_path, ROWS)
    storage = open_storage(tmp_path)
    (data,) = (key for key in storage.keys("artifacts") if key.endswith(".parquet"))
    storage.put(data, b"half")
    ref = write(tmp_path, ROWS)
    assert data.startswith(ref.folder)
    assert verify_artifact(storage, ref) == []
    assert list(ArtifactReader(storage, ref).rows()) == ROWS


def test_manifest_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_if, there = ObjectStorage.put_if, []

    def watched(storage: ObjectStorage, key: str, data: bytes, expected: bytes | None) -> bool:
        if key.endswith("artifact.json"):
            there.extend(name.rpartition("/")[2] for name in storage.keys("artifacts"))
        return put_if(storage, key, data, expected)

    monkeypatch.setattr(ObjectStorage, "put_if", watched)
    ref = write(tmp_path, ROWS)
    assert sorted(there) == ["README.md", "data/part-00000.parquet"]
    assert artifact_exists(open_storage(tmp_path), ref)


@pytest.mark.parametrize("name", ["data/part-00000.parquet", "artifact.json"])
def test_damaged_artifact_is_named_and_repaired_by_a_rerun(tmp_path: Path, name: str) -> None:
    storage, ref = open_storage(tmp_path), write(tmp_path, ROWS)
    storage.put(f"{ref.folder}/{name}", b"damaged")
    assert verify_artifact(storage, ref)
    with pytest.raises(ArtifactError):
        list(ArtifactReader(storage, ref).rows())
    assert write(tmp_path, ROWS) == ref
    assert verify_artifact(storage, ref) == []
