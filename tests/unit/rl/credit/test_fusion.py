"""Labels and outcomes of a group as advantages of steps, to the digits of the worked example."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from support.credit.worked_example import (
    ALLOCATED,
    BY_LENGTH,
    DECOUPLED,
    FLAGS,
    ON_ALL_STEPS,
    ONLY_LABELS,
    POOLED,
    REWARDS,
)

from treadle.rl.credit.fusion import FusionSettings, decayed, fuse, normalised, standard_scores, step_values

NUMBERS = [len(flags) for flags in FLAGS]


def good(*flags: str) -> list[list[bool]]:
    return [[flag == "G" for flag in own] for own in flags]


def advantages(*flags: str, rewards: Any = REWARDS, numbers: Any = None, **keys: Any) -> list[list[float]]:
    made = fuse(good(*flags), numbers or [len(own) for own in flags], rewards, FusionSettings(**keys))
    return [one.advantages for one in made]


@pytest.mark.covers("service-28")
@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, DECOUPLED),
        ({"outcome_on": "all_steps"}, ON_ALL_STEPS),
        ({"scheme": "allocation"}, ALLOCATED),
        ({"outcome_on": "only_prm"}, ONLY_LABELS),
        ({"outcome_on": "only_prm", "alpha": 0.7}, ONLY_LABELS),
        ({"weighting": "steps"}, POOLED),
        ({"by_length": True}, BY_LENGTH),
    ],
)
def test_worked_example(keys: dict[str, Any], expected: list[list[float]]) -> None:
    made = advantages(*FLAGS, **keys)
    assert [[round(value, 4) for value in own] for own in made] == expected


def test_advantage_of_a_step_is_the_sum_of_what_it_and_later_steps_got() -> None:
    ((first, second, third), *_) = advantages(*FLAGS, alpha=0.0)
    assert first == second == third == pytest.approx(1.0), "without labels only the outcome of the last step is left"


def test_missing_labels_are_good_except_those_of_failures_in_allocation() -> None:
    short = ("GB", "B", "", "BG")
    assert advantages(*short, numbers=NUMBERS) == advantages("GBG", "BG", "G", "BGGG")
    found = advantages(*short, numbers=NUMBERS, scheme="allocation")
    assert found == advantages("GBG", "BB", "G", "BGBB", scheme="allocation")


def test_labels_beyond_the_steps_are_ignored() -> None:
    assert advantages("GBGB", "BBGG", "GB", "BGGGB", numbers=NUMBERS) == advantages(*FLAGS)


def test_shares_of_allocation_add_up_to_the_sign_of_the_outcome() -> None:
    settings = FusionSettings(scheme="allocation")
    values = step_values(good(*FLAGS), REWARDS, settings)
    assert [sum(own) for own in values] == pytest.approx([1.0, -1.0, 1.0, -1.0])
    assert values[0] == pytest.approx([1 / 2.2, 0.2 / 2.2, 1 / 2.2])
    assert values[3] == pytest.approx([-1 / 1.6, -0.2 / 1.6, -0.2 / 1.6, -0.2 / 1.6])
    # The fusion calls a reward above 0.5 a success.
    half = step_values(good("G"), [0.5], settings)
    assert half == [[-1.0]]
    nothing = dataclasses.replace(settings, consistent=0.0)
    assert step_values(good("GG"), [1.0], nothing) == [[0.0, 0.0]]


def test_equal_labels_and_equal_outcomes_give_no_advantage() -> None:
    assert advantages("GG", "G", rewards=[1.0, 1.0]) == [[0.0, 0.0], [0.0]]
    assert standard_scores([0.3, 0.3, 0.3]) == [0.0, 0.0, 0.0]
    assert standard_scores([1.0, 0.0, 1.0, 0.0]) == [1.0, -1.0, 1.0, -1.0]
    assert normalised([[], []], "trajectories") == [[], []]


def test_values_have_mean_0_and_deviation_1_unless_they_are_left_as_they_are() -> None:
    values = step_values(good(*FLAGS), REWARDS, FusionSettings())
    assert normalised(values, "none") == values
    pooled = [value for own in normalised(values, "steps") for value in own]
    assert sum(pooled) == pytest.approx(0.0) and sum(value**2 for value in pooled) / len(pooled) == pytest.approx(1.0)
    assert normalised(normalised(values, "steps"), "steps") == [
        pytest.approx(own) for own in normalised(values, "steps")
    ]


def test_share_of_the_outcome_and_sign_agreement() -> None:
    first, _, _, last = fuse(good(*FLAGS), NUMBERS, REWARDS, FusionSettings())
    sizes = [0.8094, 1.2354, 0.8094]
    assert first.outcome_share == pytest.approx(1 / (1 + 0.1 * sum(sizes)), abs=1e-4) and first.agrees
    assert last.agrees, "a failure whose first advantage is below 0"
    swamped = fuse(good(*FLAGS), NUMBERS, REWARDS, FusionSettings(outcome_on="only_prm"))
    assert (swamped[3].outcome_share, swamped[3].agrees) == (0.0, False)
    assert fuse(good("G"), [1], [1.0], FusionSettings())[0].outcome_share is None


def test_alpha_decays_as_half_a_cosine_wave() -> None:
    assert [decayed(0.2, 0.1, step, 100) for step in (0, 50, 100, 250)] == pytest.approx([0.2, 0.15, 0.1, 0.1])
    assert decayed(0.2, 0.0, 25, 100) == pytest.approx(0.1 * (1 + 2**-0.5))
