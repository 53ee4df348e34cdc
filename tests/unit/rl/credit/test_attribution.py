"""The rule `attribution`: advantages of turns by labels of a model over HTTP, and what is not paid for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.credit.worked_example import (
    ALLOCATED,
    DECOUPLED,
    FLAGS,
    ON_ALL_STEPS,
    REWARDS,
    attribution,
    credit_group,
    label_actions,
)
from support.model_servers.threaded_server import serving
from support.servers.scripted_server import Fault

from treadle.core.config import load_config
from treadle.core.errors import ConfigError, EndpointUnavailable
from treadle.rl.config import RlOptions
from treadle.rl.credit.attribution import AttributionCredit
from treadle.rl.credit.base import CreditGroup, turn_credits
from treadle.rl.credit.outcome import group_advantages
from treadle.rl.credit.registry import CREDITS

Credits = list[tuple[list[float], dict[str, float]]]


def credited(group: CreditGroup, script: Any = label_actions, **keys: Any) -> tuple[Credits, int]:
    """Return the credits of a group, and the number of requests."""
    with serving(script) as server, (rule := attribution(server.url, **keys)).open():
        return turn_credits(rule, group), len(server.requests)


def rounded(found: Credits) -> list[list[float]]:
    return [[round(value, 4) for value in advantages] for advantages, _ in found]


@pytest.mark.covers("service-28")
@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, DECOUPLED),
        ({"outcome_on": "all_steps"}, ON_ALL_STEPS),
        ({"scheme": "allocation"}, ALLOCATED),
    ],
)
def test_labels_of_a_model_give_the_worked_advantages(keys: dict[str, Any], expected: list[list[float]]) -> None:
    found, num_requests = credited(credit_group(), **keys)
    assert rounded(found) == expected and num_requests == 4


def test_facts_about_labels_and_outcomes_come_with_the_advantages() -> None:
    found, _ = credited(credit_group())
    parts = [own for _, own in found]
    assert [own["labels_read"] for own in parts] == [1.0] * 4
    assert [own.get("good_in_successes") for own in parts] == [pytest.approx(2 / 3), None, 1.0, None]
    assert [own.get("good_in_failures") for own in parts] == [None, 0.0, None, 0.75]
    assert [own["credited_turns"] for own in parts] == [3.0, 2.0, 1.0, 4.0]
    assert [own["sign_agreement"] for own in parts] == [1.0] * 4
    assert [round(own["outcome_share"], 3) for own in parts] == [0.778, 0.802, 0.925, 0.732]
    assert all(own.keys() <= AttributionCredit.PARTS.keys() for own in parts)


def test_no_label_is_bought_from_the_step_on_that_ends_them() -> None:
    for step, asked in ((1, 4), (4, 4), (5, 0), (6, 0)):
        found, num_requests = credited(credit_group(step=step), prm_steps=5)
        assert num_requests == asked
        if not asked:
            outcomes = group_advantages(REWARDS)
            assert found == [([value] * len(flags), {}) for value, flags in zip(outcomes, FLAGS, strict=True)]
    assert credited(credit_group(step=10_000), prm_steps=None)[1] == 4


@pytest.mark.parametrize(
    ("skip", "rewards", "asked"),
    [
        ("none", (1.0, 0.0, 1.0, 0.0), 4),
        ("failures", (1.0, 0.0, 1.0, 0.0), 2),
        ("failures", (1.0, 0.2, -1.0, 0.0), 2),
        ("no_advantage", (1.0, 0.0, 1.0, 0.0), 4),
        ("no_advantage", (1.0, 0.0, 0.5, 0.5), 2),
        ("no_advantage", (1.0, 1.0, 1.0, 1.0), 0),
    ],
)
def test_skipped_rollouts_are_not_paid_for(skip: str, rewards: tuple[float, ...], asked: int) -> None:
    assert credited(credit_group(rewards=rewards), skip=skip)[1] == asked


def test_steps_of_skipped_rollouts_have_the_sign_of_the_outcome() -> None:
    found, _ = credited(credit_group(), skip="failures")
    expected, _ = credited(credit_group(flags=("GBG", "BB", "G", "BBBB")))
    assert rounded(found) == rounded(expected)
    assert "labels_read" not in found[1][1] and found[0][1]["labels_read"] == 1.0


def test_unreadable_labels_have_the_sign_of_the_outcome_and_are_counted() -> None:
    found, num_requests = credited(credit_group(), lambda _: "I cannot tell.", attempts=2)
    expected, _ = credited(credit_group(flags=("GGG", "BB", "G", "BBBB")))
    assert rounded(found) == rounded(expected) and num_requests == 8
    assert [own["labels_read"] for _, own in found] == [0.0] * 4
    assert not any("good_in_successes" in own for _, own in found)


def test_rollouts_without_a_reward_have_no_part_in_the_group() -> None:
    group = credit_group(flags=(*FLAGS, "BBB"), rewards=(*REWARDS, None))
    found, num_requests = credited(group)
    assert rounded(found) == [*DECOUPLED, [0.0, 0.0, 0.0]] and num_requests == 4
    assert found[-1][1] == {}
    assert credited(credit_group(rewards=(None,) * 4)) == ([([0.0] * len(flags), {}) for flags in FLAGS], 0)


@pytest.mark.covers("service-18")
def test_two_queries_of_one_seed_are_groups_of_their_own_with_labels_of_their_own() -> None:
    first, second = credit_group(query="Sell it."), credit_group(query="Buy it.", rewards=(0.0, 0.0, 0.0, 1.0))
    with serving(label_actions) as server, (rule := attribution(server.url)).open():
        made = [turn_credits(rule, group) for group in (first, second)]
        assert len(server.requests) == 8, "the same steps of another query are another case"
    assert rounded(made[0]) == DECOUPLED
    # The mean of the rewards is the group's own, 0.25: one success of four.
    share = made[1][3][0][-1] - made[1][2][0][-1]
    assert share == pytest.approx((1.0 - 0.0) / 0.4330127, abs=1e-6)


def test_alpha_decays_over_the_steps_of_the_phase_or_as_told() -> None:
    keys = {"alpha": 0.2, "alpha_decay": "cosine", "alpha_min": 0.1}
    halved, _ = credited(credit_group(step=50, num_steps=100), prm_steps=None, **keys)
    given, _ = credited(credit_group(), alpha=0.15)
    assert rounded(halved) == rounded(given)
    last, _ = credited(credit_group(step=50, num_steps=100), total_steps=25, **keys)
    assert rounded(last) == DECOUPLED


def test_resumed_training_asks_for_no_label_again(tmp_path: Path) -> None:
    folder = tmp_path / "credit"
    with serving(label_actions) as server:
        for _ in range(2):
            with (rule := attribution(server.url)).open(folder):
                assert rounded(turn_credits(rule, credit_group())) == DECOUPLED
        assert len(server.requests) == 4 and rule.servers() == ()


def test_model_that_is_down_ends_the_attempt() -> None:
    with pytest.raises(EndpointUnavailable):
        credited(credit_group(), [Fault.status(500)] * 8)


def test_rule_shows_its_server_while_it_is_open() -> None:
    with serving(label_actions) as server, (rule := attribution(server.url)).open():
        turn_credits(rule, credit_group())
        ((name, state),) = rule.servers()
        assert name == "rl.credit" and state.url == server.url and state.answered == 4


def test_settings_that_do_not_fit_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"1/rl@phase-1: rl\.credit has no model that labels"):
        AttributionCredit().check("1/rl@phase-1")
    for keys, said in (
        ({"by_length": True, "scheme": "allocation"}, "by_length divides values of fixed size"),
        ({"alpha_decay": "cosine", "alpha_min": 0.5}, "alpha_min 0.5 is more than alpha 0.1"),
        ({"skip": "negative"}, "skip"),
    ):
        with pytest.raises(ConfigError, match=said):
            load_config(RlOptions, data={"credit": {"type": "attribution", **keys}})
    assert isinstance(CREDITS.parse("attribution"), AttributionCredit)
