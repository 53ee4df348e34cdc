"""The joined table of trajectories: it is a stream, and rows that are missing or misplaced are never mixed up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.tables.page_runs import Scored, counted_run
from support.tables.score_tables import score

from treadle.core.errors import DataError, RunError
from treadle.core.runs.run import Run
from treadle.core.store import parquet
from treadle.core.store.artifact_reader import ArtifactReader
from treadle.tasks.analysis.trajectories import FollowingRows, trajectory_batches
from treadle.tasks.exchange.trajectories_export import export_trajectories

NUM = 600
GROUP = 50


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a run of two models in row groups of `GROUP` rows; nothing was measured of every third rollout."""
    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", GROUP)
    models = [
        [
            score(f"{model}-{place:04d}", f"q{place // 4}", place % 2 == 0, model=model, prediction=f"{model} {place}")
            for place in range(NUM)
        ]
        for model in ("base", "weak")
    ]
    times = [(1.0, place / 2, place / 4) if place % 3 else None for place in range(NUM)]
    return counted_run(tmp_path, "run", [Scored(rows, times) for rows in models])


def test_a_batch_is_held_of_each_table_and_token_ids_are_never_read(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    read: Counter[str] = Counter()
    asked: set[str] = set()
    batches_of = ArtifactReader.batches

    def watched(self: ArtifactReader, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        assert columns is not None, "columns are named, so that none is read in vain"
        asked.update(columns)
        for batch in batches_of(self, columns):
            read[self.kind] += batch.num_rows
            yield batch

    monkeypatch.setattr(ArtifactReader, "batches", watched)
    done = 0
    for batch in trajectory_batches(run):
        done += batch.num_rows
        assert batch.num_rows <= GROUP and 0 <= read["rollouts"] - done <= GROUP, "rollouts are read as they are joined"
        assert 0 <= read["scores"] - done <= GROUP, "so are their verdicts"
    assert done == 2 * NUM and "samples" not in asked


def test_every_rollout_has_its_own_verdict_and_times(run: Run, tmp_path: Path) -> None:
    assert export_trajectories(run, tmp_path / "out", model="weak")["num_rows"] == NUM
    rows = parquet_rows(tmp_path / "out")
    assert [row["rollout_key"] for row in rows] == [f"weak-{place:04d}" for place in range(NUM)]
    for place, row in enumerate(rows):
        assert (row["prediction"], row["right"], row["question_key"]) == (
            f"weak {place}",
            place % 2 == 0,
            f"q{place // 4}",
        )
        assert row["gold"] == [f"answer q{place // 4} "] and row["instance"] == "1/rollouts@model1"
        assert row["model_seconds"] == (place / 2 if place % 3 else None)
        assert row["tokens_per_turn"] == ([] if place % 3 else None)
    with pytest.raises(RunError, match="no rollouts of 'other'; there are those of base, weak"):
        export_trajectories(run, tmp_path / "other", model="other")
    assert not (tmp_path / "other").exists()


def parquet_rows(folder: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    found: list[dict[str, Any]] = pq.read_table(folder / "data").to_pylist()
    return found


def batches(*keys: str) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(keys), 2):
        yield pa.RecordBatch.from_pylist([{"rollout_key": key} for key in keys[start : start + 2]])


def test_rows_in_another_order_are_refused() -> None:
    rows = FollowingRows(batches("a", "c", "d", "f"), "scores of 1/rollouts@base")
    assert list(rows.take(["a", "b"])) == ["a"] and rows.num_held == 1
    assert sorted(rows.take(["c", "d", "e"])) == ["c", "d"] and sorted(rows.take(["f", "g"])) == ["f"]
    rows.close()
    for late in (("b", "c", "a"), ("c", "d", "a", "b")):
        rows = FollowingRows(batches(*late), "scores of 1/rollouts@base")
        with pytest.raises(DataError, match="scores of 1/rollouts@base: rollout a is not in its place"):
            for key in ("a", "b", "c"):
                rows.take([key])
            rows.close()
