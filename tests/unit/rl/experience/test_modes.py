"""Which tasks keep experience, which rollouts see it, and which settings are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from treadle.rl.config import RlOptions
from treadle.rl.experience.modes import hinted_rollouts, kept_tasks
from treadle.rl.experience.settings import ExperienceUse


@pytest.mark.covers("service-26")
@given(st.integers(1, 64), st.floats(0.0, 1.0), st.integers(0, 2**31 - 1))
def test_mixed_chooses_exactly_the_rounded_share_of_a_group(size: int, ratio: float, seed: int) -> None:
    use = ExperienceUse(rollout_mode="mixed", rollout_ratio=ratio)
    chosen = hinted_rollouts(use, size, seed)
    assert len(chosen) == round(size * ratio) and chosen <= set(range(size))
    assert chosen == hinted_rollouts(use, size, seed)


def test_places_of_hints_follow_from_the_seed_of_the_group() -> None:
    use = ExperienceUse(rollout_mode="mixed")
    groups = [hinted_rollouts(use, 8, seed) for seed in range(40)]
    assert {len(group) for group in groups} == {4} and len(set(groups)) > 20
    assert set.union(*map(set, groups)) == set(range(8))


def test_all_and_woexp_choose_all_and_none() -> None:
    assert hinted_rollouts(ExperienceUse(rollout_mode="all"), 5, 1) == frozenset(range(5))
    assert hinted_rollouts(ExperienceUse(), 5, 1) == frozenset()


@given(st.sets(st.text(max_size=3), max_size=30), st.floats(0.0, 1.0), st.integers(0, 100))
def test_share_of_tasks_keeps_experience_whatever_their_order(keys: set[str], ratio: float, seed: int) -> None:
    kept = kept_tasks(keys, ratio, seed)
    assert len(kept) == int(len(keys) * ratio) and kept <= keys
    assert kept == kept_tasks([*sorted(keys, reverse=True), *keys], ratio, seed)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"engine": "verl", "experience": {"rollout_mode": "all"}}, "engine verl has one clipping range"),
        (
            {"reward": "outcome", "oversample": 2.0, "experience": {"rollout_mode": "mixed"}},
            "oversample and initial_rollouts decide later",
        ),
        (
            {"initial_rollouts": 2, "experience": {"rollout_mode": "mixed"}},
            "oversample and initial_rollouts decide later",
        ),
        ({"experience": {"rollout_mode": "all", "initial": False}}, "the pool would be empty for ever"),
        ({"experience": {"template": "no place"}}, r"it has \{experience\} 0 times"),
        ({"experience": {"template": "{experience} and {experience}"}}, r"it has \{experience\} 2 times"),
    ],
)
def test_settings_that_cannot_work_are_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        RlOptions.model_validate(keys)


def test_verl_trains_without_experience() -> None:
    assert not RlOptions.model_validate({"engine": "verl"}).experience.is_used
