"""Artifacts and runs on an object root: the tests of the local one again, and what a store without renames adds."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.core.runs.test_run import (  # noqa: F401
    test_an_unknown_run_is_answered_with_the_known_ones,
    test_another_semantic_configuration_is_refused_with_the_keys,
    test_instances_without_an_attempt_are_absent,
)
from unit.core.store.test_artifacts import (  # noqa: F401 - the same tests, on the root of this file
    test_a_row_that_does_not_fit_is_named,
    test_a_table_without_rows_is_a_table,
    test_further_files_are_part_of_the_digest,
    test_further_files_have_plain_names,
    test_other_rows_give_another_digest,
    test_row_groups_and_parts_are_cut_by_rows_alone,
    test_rows_come_back_in_order_with_their_types,
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


def test_what_a_killed_publication_left_is_no_artifact_and_is_overwritten(
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


def test_the_manifest_is_put_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_if, there = ObjectStorage.put_if, []

    def watched(storage: ObjectStorage, key: str, data: bytes, expected: bytes | None) -> bool:
        if key.endswith("artifact.json"):
            there.extend(name.rpartition("/")[2] for name in storage.keys("artifacts"))
        return put_if(storage, key, data, expected)

    monkeypatch.setattr(ObjectStorage, "put_if", watched)
    ref = write(tmp_path, ROWS)
    assert sorted(there) == ["README.md", "part-00000.parquet"]
    assert artifact_exists(open_storage(tmp_path), ref)


@pytest.mark.parametrize("name", ["part-00000.parquet", "artifact.json"])
def test_a_damaged_artifact_is_named_and_repaired_by_making_it_again(tmp_path: Path, name: str) -> None:
    storage, ref = open_storage(tmp_path), write(tmp_path, ROWS)
    storage.put(f"{ref.folder}/{name}", b"damaged")
    assert verify_artifact(storage, ref)
    with pytest.raises(ArtifactError):
        list(ArtifactReader(storage, ref).rows())
    assert write(tmp_path, ROWS) == ref
    assert verify_artifact(storage, ref) == []
