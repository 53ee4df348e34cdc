"""Pairs of turns for LLaMA-Factory: records, the golden configuration, and what it cannot train."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.preferences.pair_rows import TALK, pair_row
from support.tables.score_tables import new_run, put_rows

from treadle.core.errors import ConfigError, DataError
from treadle.core.runs.address import Address
from treadle.rl.dpo.config import DpoOptions
from treadle.rl.dpo.llamafactory import CONFIG_FILE, PAIRS_FILE, export_pairs, pair_record, policy_arguments
from treadle.rl.preferences.tables import PREFERENCES

GOLDEN = Path(__file__).parents[2] / "golden" / "dpo-sweet-llama-8b.yaml"


def export(folder: Path, rows: list[dict[str, Any]], **options: Any) -> tuple[int, int]:
    run = new_run(folder / "root")
    put_rows(run, "1/preferences@turn", PREFERENCES, rows)
    record = run.record(Address.parse("1/preferences@turn"))
    assert record is not None
    table = run.rows(record.outputs["preferences"])
    made = DpoOptions(**{"aggregate": "sum", **options})
    return export_pairs(table, made, folder / "out", origin={"run": "r"}, template="llama3")


@pytest.mark.covers("sweet-30")
def test_records_alternate_and_others_are_left_out(tmp_path: Path) -> None:
    assert export(tmp_path, [pair_row(0), pair_row(1, TALK[:-1]), pair_row(2, [TALK[0], *TALK[2:]])]) == (1, 2)
    (line,) = (tmp_path / "out" / PAIRS_FILE).read_text().splitlines()
    assert json.loads(line) == {
        "conversations": [
            {"from": "human", "value": "Hi"},
            {"from": "gpt", "value": "Which?"},
            {"from": "human", "value": "That"},
        ],
        "system": "Help.",
        "chosen": {"from": "gpt", "value": "yes"},
        "rejected": {"from": "gpt", "value": "no"},
    }
    assert pair_record(pair_row(0, TALK[:2])) is not None
    with pytest.raises(DataError, match="0 of 1 pairs have a conversation that alternates"):
        export(tmp_path / "other", [pair_row(0, [])])


@pytest.mark.covers("sweet-30")
def test_configuration_of_the_preset_matches_its_golden_file(tmp_path: Path) -> None:
    export(tmp_path, [pair_row(0)], preset="sweet-llama-8b")
    text = (tmp_path / "out" / CONFIG_FILE).read_text()
    assert text == GOLDEN.read_text()
    keys = yaml.safe_load(text)
    assert keys["learning_rate"] == 2e-7 and keys["gradient_accumulation_steps"] == 8 and keys["pref_ftx"] == 0.01


@pytest.mark.covers("sweet-29")
@pytest.mark.parametrize("aggregate", ["token_mean", "turn_sum"])
def test_sigmoid_of_sums_is_refused_for_a_critic(aggregate: Any) -> None:
    with pytest.raises(ConfigError, match=f"dpo.aggregate = {aggregate}: the losses of LLaMA-Factory sum"):
        policy_arguments(DpoOptions(aggregate=aggregate))


def test_pairs_of_whole_rollouts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="these are pairs of the kind trajectory"):
        export(tmp_path, [pair_row(0, kind="trajectory")])
