"""Pairs to hold out and to train on: splits by task, limits, and rows that a policy may not see."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.preferences.pair_rows import pair_row
from support.tables.score_tables import new_run, put_rows

from treadle.core.errors import ConfigError, StageFailed
from treadle.core.runs.address import Address
from treadle.rl.dpo.config import DpoOptions, DpoSettings
from treadle.rl.dpo.rows import PairStore, split_pairs
from treadle.rl.preferences.tables import PREFERENCES


@pytest.mark.covers("sweet-28")
def test_first_pairs_are_held_out_as_in_the_released_code() -> None:
    tasks = [f"t{number // 4}" for number in range(1000)]
    assert split_pairs(tasks, 0.03, "first", 1) == frozenset(range(30))


@pytest.mark.covers("sweet-28")
def test_held_out_tasks_are_on_one_side_and_follow_the_seed() -> None:
    tasks = [f"t{number % 250}" for number in range(1000)]
    chosen = split_pairs(tasks, 0.03, "task", 1)
    sides = [{tasks[place] for place in range(1000) if (place in chosen) == side} for side in (True, False)]
    assert not sides[0] & sides[1] and 30 <= len(chosen) <= 33
    assert chosen == split_pairs(tasks, 0.03, "task", 1) != split_pairs(tasks, 0.03, "task", 2)


def test_one_task_is_always_left_to_train_on() -> None:
    assert split_pairs(["a", "b", "b"], 0.9, "task", 1) in ({0}, {1, 2})
    assert split_pairs(["a", "a"], 0.5, "task", 1) == split_pairs(["a"], 0.5, "first", 1) == frozenset()
    assert len(split_pairs(["a", "b", "c"], 0.01, "task", 1)) == 1, "a small share still measures something"


def store(
    folder: Path, rows: list[dict[str, Any]], *, is_critic: bool = False, seed: int = 0, **options: Any
) -> PairStore:
    run = new_run(folder)
    put_rows(run, "1/preferences@turn", PREFERENCES, rows)
    record = run.record(Address.parse("1/preferences@turn"))
    assert record is not None
    settings = DpoSettings(options=DpoOptions(aggregate="sum", **options), is_critic=is_critic, seed=seed)
    return PairStore(settings, [run.rows(record.outputs["preferences"])], "1/dpo@policy")


def test_long_pairs_and_those_over_the_limit_are_counted(tmp_path: Path) -> None:
    pairs = store(
        tmp_path / "root", [pair_row(number) for number in range(8)], max_tokens=8, max_rows=3, holdout_share=0.2
    )
    selection = pairs.select()
    assert (len(selection.train), len(selection.held_out)) == (3, 1)
    assert selection.left_out == Counter(too_long=2, over_limit=2)
    pairs.store(tmp_path / "rows.parquet", selection)
    written = pq.read_table(tmp_path / "rows.parquet", use_threads=False).to_pylist()
    assert [row["held_out"] for row in written].count(True) == 1 and len(written) == 4
    assert selection.longest == max(len(row["prompt_ids"]) + 2 for row in written)
    assert selection.num_target_tokens == 6 and selection.tokenizers == {"t"}


def test_rows_over_the_limit_are_drawn_by_the_seed(tmp_path: Path) -> None:
    rows = [pair_row(number) for number in range(12)]
    found = [
        store(tmp_path / str(place), rows, max_rows=4, holdout_share=0, seed=seed).select().train
        for place, seed in enumerate((1, 1, 2))
    ]
    assert found[0] == found[1] != found[2] and all(len(one) == 4 for one in found)


def test_longer_side_decides_and_the_limit_itself_is_allowed(tmp_path: Path) -> None:
    uneven = pair_row(0, rejected_ids=[5, 6, 7, 8], rejected_mask=[1] * 4, rejected_turns=[4])
    pairs = store(tmp_path / "a", [uneven, pair_row(2)], max_tokens=5, holdout_share=0)
    selection = pairs.select()
    assert not selection.left_out and len(selection.train) == 2
    pairs.store(tmp_path / "rows.parquet", selection)
    assert selection.longest == 5 and selection.prompt == [1], "of the first pair"
    with pytest.raises(StageFailed, match="too_long 1"):
        store(tmp_path / "b", [uneven], max_tokens=4).select()


def test_policy_is_never_trained_on_hidden_information(tmp_path: Path) -> None:
    rows = [pair_row(0), pair_row(1, hidden=True)]
    with pytest.raises(ConfigError, match="state hidden information, which only dpo@critic may be trained on"):
        store(tmp_path / "a", rows).select()
    assert len(store(tmp_path / "b", rows, is_critic=True, holdout_share=0).select().train) == 2


def test_pairs_longer_than_the_window_of_the_model_are_left_out(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    longer = pair_row(1, rejected_ids=[5, 6, 7, 8], rejected_mask=[1] * 4, rejected_turns=[4])
    put_rows(run, "1/preferences@turn", PREFERENCES, [pair_row(0), longer])
    record = run.record(Address.parse("1/preferences@turn"))
    assert record is not None
    settings, tables = DpoSettings(options=DpoOptions(holdout_share=0)), [run.rows(record.outputs["preferences"])]
    selection = PairStore(settings, tables, "1/dpo@policy", window_tokens=5).select()
    assert len(selection.train) == 1 and selection.left_out == Counter(over_window=1)
    with pytest.raises(StageFailed, match="over_window 2"):
        PairStore(settings, tables, "1/dpo@policy", window_tokens=2).select()


def test_no_pair_left_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(StageFailed, match=r"no pair is left to train on \(too_long 1\)"):
        store(tmp_path, [pair_row(0)], max_tokens=1).select()
