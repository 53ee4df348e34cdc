"""Figures of stages in trackers: names, steps, files, and what a missing or dead tracker does."""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.tables.pool_tables import pool_row
from support.tables.score_tables import new_run, put_rows

from treadle.core.errors import ConfigError
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.datagen.pools.tables import POOLS
from treadle.tasks.trackers import reporting, services
from treadle.tasks.trackers.figures import TrackedFigures, tracked_figures
from treadle.tasks.trackers.tensorboard_files import _checksum, write_events


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(reporting, "_dead", set())
    return Run.create(tmp_path, "first", {"flow": {"trackers": ["tensorboard"]}}, {}, seed=0)


def record(address: str, metrics: dict[str, Any], **more: Any) -> StageRecord:
    facts = {"version": 1, "fingerprint": "f", "settings": {}, "inputs": {}, "outputs": {}, "telemetry": {}}
    times = {"attempt": 1, "started_at": "", "finished_at": "", "versions": {}}
    stage = address.partition("/")[2].partition("@")[0]
    return StageRecord(address=address, stage=stage, metrics=metrics, **facts, **times, **more)


@pytest.mark.parametrize(
    ("address", "step", "name"),
    [
        ("1/pools", 1, "pools/num_right"),
        ("2/pools", 2, "pools/num_right"),
        ("2/scores@base", 2, "scores/base/num_right"),
        ("1/dpo@critic", 1, "dpo/critic/num_right"),
        ("1/rl@phase-3", 3, "rl/num_right"),
        ("2/rl@phase-1", 1, "iteration-2/rl/num_right"),
    ],
)
def test_curves_of_iterations_and_phases(run: Run, address: str, step: int, name: str) -> None:
    (found,) = tracked_figures(record(address, {"num_right": 3}), run)
    assert (found.step, found.values) == (step, {name: 3.0})


def test_only_finite_numbers_are_figures_and_names_suit_all_trackers(run: Run) -> None:
    metrics = {"a": {"b:c": 1, "no": None}, "nan": float("nan"), "yes": True, "text": "x", "list": [1]}
    (found,) = tracked_figures(record("1/pools", metrics), run)
    assert found.values == {"pools/a/b_c": 1.0}


@pytest.mark.parametrize("iteration", [1, 2])
def test_pools_have_a_curve_over_their_rounds(tmp_path: Path, iteration: int) -> None:
    run = new_run(tmp_path)
    made = [("a", "q1", 0, False, 4), ("b", "q2", 0, True, 2), ("c", "q1", 2, True, 1), ("d", "q2", 2, None, 2)]
    rows = [
        pool_row(key, question, round=number, correct=right, calls_requested=calls)
        for key, question, number, right, calls in made
    ]
    stored = run.record(put_rows(run, f"{iteration}/pools", POOLS, rows))
    assert stored is not None
    whole, *rounds = tracked_figures(stored.model_copy(update={"metrics": {"n": 4}}), run)
    assert (whole.step, whole.values) == (iteration, {"pools/n": 4.0})
    start = "pools/round" if iteration == 1 else "iteration-2/pools/round"
    figures = [
        {"num_trajectories": 2, "num_correct": 1, "calls_per_trajectory": 3.0, "num_questions_correct": 1},
        {"num_trajectories": 0, "num_correct": 0, "num_questions_correct": 1},
        {"num_trajectories": 2, "num_correct": 1, "calls_per_trajectory": 1.5, "num_questions_correct": 2},
    ]
    assert [(one.step, one.values) for one in rounds] == [
        (number, {f"{start}/{name}": value for name, value in values.items()}) for number, values in enumerate(figures)
    ]


def test_checksum_is_the_masked_crc_32c() -> None:
    """The CRC-32C of `123456789` is 0xE3069283 by its definition."""
    crc = 0xE3069283
    assert _checksum(b"123456789") == struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def test_event_file_of_tensorboard(tmp_path: Path) -> None:
    content = write_events(tmp_path, {"scores/base": 0.5}, step=300).read_bytes()
    events, place = [], 0
    while place < len(content):
        (length,) = struct.unpack_from("<Q", content, place)
        assert content[place + 8 : place + 12] == _checksum(content[place : place + 8])
        events.append(content[place + 12 : place + 12 + length])
        assert content[place + 12 + length : place + 16 + length] == _checksum(events[-1])
        place += 16 + length
    value = b"\x0a\x0bscores/base\x15" + struct.pack("<f", 0.5)
    summary = b"\x0a" + bytes([len(value)]) + value
    assert [event[9:] for event in events] == [
        b"\x1a\x0dbrain.Event:2", b"\x10\xac\x02\x2a" + bytes([len(summary)]) + summary,
    ]  # fmt: skip


def test_new_result_is_reported_and_a_reused_one_is_not(run: Run, tmp_path: Path) -> None:
    told: list[str] = []
    result = record("1/pools", {"num_right": 3})
    reporting.report_to_trackers(("tensorboard",), result.model_copy(update={"reused": True}), run, told.append)
    assert not (tmp_path / "tensorboard").exists()
    reporting.report_to_trackers(("tensorboard",), result, run, told.append)
    assert len(list((tmp_path / "tensorboard/first").iterdir())) == 1
    assert told == []


def test_missing_package_is_named_before_work_starts(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reporting.trackers_of(run) == ("tensorboard",)
    monkeypatch.setattr(run, "config", lambda: {"flow": {"trackers": ["wandb"]}})
    monkeypatch.setattr(reporting, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install wandb"):
        reporting.trackers_of(run)


@pytest.mark.parametrize("hangs", [False, True])
def test_dead_tracker_is_told_once_and_never_fails_or_blocks(
    run: Run, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    ends, told, calls = threading.Event(), list[str](), list[str]()

    def dead(run: Run, figures: Sequence[TrackedFigures]) -> None:
        calls.extend(one.address for one in figures)
        if hangs:
            ends.wait()
        raise OSError("connection\nrefused")

    monkeypatch.setitem(services.TRACKERS, "wandb", (dead, "wandb"))
    monkeypatch.setattr(reporting, "MAX_WAIT_S", 0.01 if hangs else 60.0)
    for address in ("1/pools", "1/sft_rows"):
        reporting.report_to_trackers(("wandb", "tensorboard"), record(address, {"n": 1}), run, told.append)
    ends.set()
    assert len(told) == 1 and "wandb" in told[0] and "\n" not in told[0]
    assert calls == ["1/pools"]
    assert len(list((Path(run.storage.location()) / "tensorboard/first").iterdir())) == 2
