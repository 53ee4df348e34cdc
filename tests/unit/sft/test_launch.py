"""Files of a training: rows, states, events; no process is started."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from treadle.core.engines import devices
from treadle.core.engines.devices import num_devices
from treadle.core.engines.environments import lock_text
from treadle.core.engines.event_log import EventLog
from treadle.core.engines.events import STATE_MARKER, EventFile
from treadle.core.errors import ConfigError, StorageError
from treadle.sft.launch import TrainingFolder, TrainingStep, store_rows

STEP = {"num_steps": 9, "loss": 1.0, "learning_rate": 0.1, "grad_norm": None, "epoch": 0.1}


def batch(*rows: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"text": ["x"] * len(rows), "labels": list(rows), "input_ids": list(rows)})


def unreadable() -> Iterator[pa.RecordBatch]:
    yield batch([1])
    raise OSError(errno.EIO, "cannot be read")


def write_step(events: EventFile, step: int, seconds: float) -> None:
    events.write("step", step=step, seconds=seconds, **STEP)


def test_only_ids_and_labels_are_stored_exactly_once(tmp_path: Path) -> None:
    folder = TrainingFolder(tmp_path / "new")
    assert store_rows(folder, [batch([1, 2], [3]), batch([4])]) == 3
    stored = pq.read_table(folder.parquet)
    assert stored.column_names == ["input_ids", "labels"]
    assert stored["labels"].to_pylist() == [[1, 2], [3], [4]]

    assert store_rows(folder, unreadable()) == 3


def test_incompletely_stored_rows_do_not_count(tmp_path: Path) -> None:
    folder = TrainingFolder(tmp_path)

    with pytest.raises(StorageError):
        store_rows(folder, unreadable())
    assert not folder.parquet.exists() and store_rows(folder, [batch([1])]) == 1


def test_newest_state_is_the_complete_one_with_most_steps(tmp_path: Path) -> None:
    folder = TrainingFolder(tmp_path)
    assert folder.newest_state() is None
    for name in ("checkpoint-5", "checkpoint-40", "checkpoint-100", "checkpoint-x", "other"):
        (folder.output / name).mkdir(parents=True)
    for step in (5, 40):
        (folder.output / f"checkpoint-{step}" / STATE_MARKER).touch()
    assert folder.newest_state() == folder.output / "checkpoint-40"
    folder.remove_incomplete_states()
    assert sorted(path.name for path in folder.output.iterdir()) == [
        "checkpoint-40",
        "checkpoint-5",
        "checkpoint-x",
        "other",
    ]


def test_repeated_steps_count_once(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "events")
    facts = {"num_steps": 3, "num_trained_parameters": 5, "device": "none"}
    file.write("begin", resumed_step=0, **facts)
    for step in (1, 2, 3):
        write_step(file, step, 10.0 * step)
    events = EventLog(tmp_path / "events", TrainingStep)
    assert len(list(events.new())) == 4 and not list(events.new())
    file.write("begin", resumed_step=2, **facts)
    write_step(file, 3, 10.0)
    assert len(list(events.new())) == 2
    assert [(step.step, step.seconds) for step in events.steps] == [(1, 10.0), (2, 20.0), (3, 30.0)]


def test_truncated_line_neither_counts_nor_swallows_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_text('{"event": "begin", "resumed')
    events = EventLog(path, TrainingStep)
    assert not list(events.new())
    events.end_torn_line()
    EventFile(path).write("saved", step=1)
    assert [event["event"] for event in events.new()] == ["saved"]


def test_uncountable_gpus_must_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_GPUS", tmp_path / "gpus")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(ConfigError, match="set `devices` or `num_devices`"):
        num_devices(None, "cuda")
    assert num_devices(3, "cuda") == 3 and num_devices(None, "cpu") == 1
    for name in ("a", "b"):
        (tmp_path / "gpus" / name).mkdir(parents=True)
    assert num_devices(None, "cuda") == 2 and num_devices(None, "cuda", (1,)) == 1


@pytest.mark.parametrize("variant", ["cpu", "cuda"])
def test_locks_respect_llamafactory_version_bounds(variant: str) -> None:
    """As its own check of versions has them; torchaudio takes one torch only."""
    pins = dict(
        line.split(" ")[0].split("==")
        for line in lock_text("sft", variant).splitlines()
        if "==" in line and line[0] != "#"
    )
    assert pins["llamafactory"] == "0.9.5"
    assert (pins["torch"], pins["torchaudio"], pins["torchvision"]) == ("2.11.0", "2.11.0", "0.26.0")
    most = {"datasets": (4, 0, 0), "transformers": (5, 6, 0), "trl": (0, 24, 0), "accelerate": (1, 15, 0)}
    assert all(tuple(map(int, pins[name].split("."))) <= limit for name, limit in most.items())
    on_gpu = {"triton", "liger-kernel", "deepspeed"}
    assert on_gpu & set(pins) == (on_gpu if variant == "cuda" else set())
