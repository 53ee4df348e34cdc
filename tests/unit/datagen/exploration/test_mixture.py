"""Tasks that were made by exploring are drawn by a seed, and never stand for held-out ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from treadle.core.errors import DataError, StageFailed
from treadle.core.runs.address import Address
from treadle.datagen.exploration.calibration import agreement_metrics, check_agreement
from treadle.datagen.exploration.mixture import check_not_held_out, chosen_tasks, state_of
from treadle.datagen.questions.sources import MixtureSettings

ROWS: list[dict[str, Any]] = [{"question_key": f"{number:016x}"} for number in range(20)]


def chosen(number: int, **settings: Any) -> list[str]:
    return [row["question_key"] for row in chosen_tasks(ROWS, number, MixtureSettings(**settings))]


def test_ratio_is_of_the_originals_and_all_are_taken_if_there_are_fewer() -> None:
    assert len(chosen(10, synthetic=0.5)) == 5 and len(chosen(3, synthetic=0.5)) == 1
    assert len(chosen(10)) == len(chosen(100, synthetic=1.0)) == 20 and chosen(10, synthetic=0.0) == []


def test_choice_and_order_follow_the_seed_alone() -> None:
    keys = [row["question_key"] for row in ROWS]
    assert chosen(10) == chosen(1) != keys and sorted(chosen(10)) == keys
    assert chosen(10, synthetic=1.0) == chosen(10)[:10] != chosen(10, synthetic=1.0, seed=1)


def test_duplicates_are_told_by_the_state_of_the_seed() -> None:
    payload = {"seed": 3, "objective": {"evaluator": "env", "reference": ["x"]}}
    assert state_of({"payload": json.dumps(payload)}) == '{"seed":3}'
    assert state_of({"payload": "{}"}) == "{}"


def test_task_of_a_held_out_state_is_refused() -> None:
    row = {"question_key": "k", "meta": '{"seed_key": "s"}', "source_file": "exploration"}
    check_not_held_out(row, {"other"})
    with pytest.raises(DataError, match="exploring the held-out task s"):
        check_not_held_out(row, {"s"})


def test_agreement_counts_rollouts_that_both_judged() -> None:
    pairs = [(True, True), (False, False), (True, False), (False, True), (None, True), (True, None)]
    found = agreement_metrics({"graded": graded, "scored": scored} for graded, scored in pairs)
    assert found["agreement"] == 0.5 and found["calibration.without_verdict"] == 2
    assert (found["calibration.grader_only"], found["calibration.environment_only"]) == (1, 1)
    address = Address.parse("1/exploration")
    check_agreement(address, "g", found, 0.5)
    with pytest.raises(StageFailed, match="agree on 50% of 4 rollouts"):
        check_agreement(address, "g", found, 0.6)
    with pytest.raises(StageFailed, match="no rollout of a seed task has a verdict of both"):
        check_agreement(address, "g", agreement_metrics([]), 0.1)
    assert "agreement" not in agreement_metrics([])


@pytest.mark.parametrize("scored", [True, False])
def test_agreement_on_rollouts_that_the_environment_scored_alike_is_refused(scored: bool) -> None:
    found = agreement_metrics([{"graded": scored, "scored": scored}] * 20)
    assert found["agreement"] == 1.0 and "balanced_agreement" not in found
    address = Address.parse("1/exploration")
    with pytest.raises(StageFailed, match=f"scored all 20 rollouts of seed tasks {'right' if scored else 'wrong'}, so"):
        check_agreement(address, "g", found, 0.7)
    check_agreement(address, "g", found, 0.0)


def test_grader_that_always_says_the_same_does_not_agree() -> None:
    found = agreement_metrics({"graded": False, "scored": number == 0} for number in range(20))
    assert (found["agreement"], found["balanced_agreement"]) == (0.95, 0.5)
    with pytest.raises(StageFailed, match=r"agree on 95% of 20 rollouts of seed tasks \(50% if right and wrong"):
        check_agreement(Address.parse("1/exploration"), "g", found, 0.7)
