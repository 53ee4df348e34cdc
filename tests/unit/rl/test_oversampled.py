"""Over-sampling in options and reports: what is refused, and what every report shows."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from treadle.rl.config import RlOptions
from treadle.rl.groups.oversampling import OverSampling
from treadle.rl.groups.oversampling_report import OverSampled, oversampling_figures

FITTING: dict[str, Any] = {"engine": "trl", "group_size": 4, "oversample": 2.0, "reward": "outcome"}


def test_is_off_by_default() -> None:
    assert RlOptions().oversampling is None
    assert RlOptions(**FITTING).oversampling == OverSampling(4, 8, 6, 0.05)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"reward": "efficiency"}, "reward efficiency compares the rollouts of a group"),
        ({"reward": {"type": "planning"}}, "reward planning compares the rollouts of a group"),
        ({"engine": "verl"}, "engine verl does not cancel rollouts"),
        ({"initial_rollouts": 2}, "rollouts that do not depend on each other"),
        ({"oversample": 1.2}, "these three numbers must increase"),
        ({"oversample": 0.5}, "greater than 1"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        RlOptions(**{**FITTING, **keys})


@pytest.mark.parametrize("reward", ["outcome", "em", "judge"])
def test_rewards_of_single_rollouts_are_accepted(reward: str) -> None:
    assert RlOptions(**{**FITTING, "reward": reward}).oversampling is not None


def step(**figures: Any) -> dict[str, Any]:
    known = dict(
        num_rollouts=4, length=10.0, num_cancelled=2, cancelled_length=30.0, num_unused=1, num_audited_groups=0,
        length_bias=None, reward_bias=None,
    )  # fmt: skip
    return {**known, **figures}


def test_report_shows_lengths_side_by_side_and_the_bias() -> None:
    log = [
        step(),
        step(length=20.0, num_cancelled=6, cancelled_length=50.0),
        step(num_audited_groups=2, length_bias=-12.0, reward_bias=0.1, num_cancelled=0, cancelled_length=None),
        step(num_audited_groups=1, length_bias=-6.0, reward_bias=0.4, num_cancelled=0, cancelled_length=None),
    ]
    found = OverSampled.of(log)
    assert found is not None
    assert (found.num_trained, found.length, found.num_cancelled, found.cancelled_length) == (16, 12.5, 8, 45.0)
    assert (found.num_audited_groups, found.length_bias, found.reward_bias) == (3, -10.0, pytest.approx(0.2))
    (table,) = oversampling_figures(log)
    assert [row[1:] for row in table.rows[:2]] == [("16", "12.5"), ("8", "45.0")]
    assert "-10.0" in table.note and "+0.200" in table.note
    assert "audit_share" in oversampling_figures([step()])[0].note, "unknown, and said so"


def test_report_without_oversampling_has_no_such_table() -> None:
    assert oversampling_figures([step(num_cancelled=None)]) == []
