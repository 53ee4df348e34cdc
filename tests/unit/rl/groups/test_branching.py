"""Entropies and decisions of branching, with the worked numbers of its specification."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.core.errors import ConfigError
from treadle.core.llm.types import Completion
from treadle.rl.groups.branching import ENTROPY_WINDOW, Branching, position_entropy, turn_entropy, uniform

QWEN_VOCABULARY = 151_665


def completion(logprobs: tuple[float, ...] | None = None, entropies: tuple[float, ...] | None = None) -> Completion:
    return Completion("", (), "stop", None, 0, 0, "", 0.0, 0, logprobs, entropies)


@pytest.mark.covers("pareto-25")
def test_candidate_entropy_reproduces_the_worked_numbers() -> None:
    positions = [(0.5, 0.25, 0.25), (0.9, 0.1)]
    entropies = tuple(position_entropy(map(math.log, candidates)) for candidates in positions)
    assert sum(entropies) == pytest.approx(1.3648, abs=5e-5)
    assert sum(entropies) / math.log(QWEN_VOCABULARY) == pytest.approx(0.1144, abs=5e-5)
    mean = turn_entropy(completion(entropies=entropies), QWEN_VOCABULARY)
    assert mean == pytest.approx(0.1144 / 2, abs=5e-5)
    assert position_entropy([0.0, -math.inf]) == 0.0


def test_only_the_first_tokens_of_a_turn_count() -> None:
    short = (1.0,) * ENTROPY_WINDOW
    assert turn_entropy(completion(entropies=(*short, 99.0)), 10) == turn_entropy(completion(entropies=short), 10)
    surprisals = tuple(-value for value in (*short, 99.0))
    assert turn_entropy(completion(logprobs=surprisals), 10) == pytest.approx(1 / math.log(10))


def test_without_entropies_sampled_token_surprisal_is_used() -> None:
    assert turn_entropy(completion(logprobs=(-1.0, -3.0)), 10) == pytest.approx(2 / math.log(10))
    assert turn_entropy(completion(logprobs=(-1.0,), entropies=(0.5,)), 10) == pytest.approx(0.5 / math.log(10))
    assert turn_entropy(completion(logprobs=()), 10) == 0.0
    with pytest.raises(ConfigError, match="initial_rollouts"):
        turn_entropy(completion(), 10)


@pytest.mark.covers("pareto-24")
@pytest.mark.parametrize(
    ("weight", "rise", "probability"), [(0.2, 0.4, 0.58), (0.2, -0.4, 0.42), (2.0, 0.4, 1.0), (2.0, -0.4, 0.0)]
)
def test_branching_probability_follows_entropy(weight: float, rise: float, probability: float) -> None:
    branching = Branching(8, entropy_weight=weight)
    draws = [(index + 1) / 10_000 for index in range(10_000)]
    share = sum(branching.branches(draw, rise) for draw in draws) / len(draws)
    assert share == pytest.approx(probability, abs=2e-4)


@pytest.mark.covers("pareto-24")
def test_draw_branches_as_in_the_worked_numbers() -> None:
    branching = Branching(8)
    assert branching.branches(0.55, 0.4)
    assert not branching.branches(0.60, 0.4)


@given(draw=st.floats(0, 1, exclude_min=True), rise=st.floats(-1, 1))
def test_probabilities_of_zero_and_one_are_exact(draw: float, rise: float) -> None:
    assert not Branching(8, probability=0.0, entropy_weight=0.0).branches(draw, rise)
    assert Branching(8, probability=1.0, entropy_weight=0.0).branches(draw, rise)


def test_draws_are_uniform_and_depend_on_their_purpose() -> None:
    draws = [uniform(seed, "branch", 0, 1, 0) for seed in range(2000)]
    assert 0 < min(draws) <= max(draws) <= 1
    assert sum(draws) / len(draws) == pytest.approx(0.5, abs=0.02)
    assert uniform(1, "branch", 0, 1, 0) == uniform(1, "branch", 0, 1, 0) != uniform(1, "branch", 1, 1, 0)


@pytest.mark.parametrize("wrong", [{"initial_rollouts": 0}, {"beam_size": 0}, {"probability": 1.5}])
def test_impossible_branching_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="invalid branching"):
        Branching(**{"initial_rollouts": 8, **wrong})


def test_log_probabilities_and_entropies_survive_the_journal() -> None:
    told = completion(logprobs=(-1.0, -2.5), entropies=(0.25,))
    assert Completion.from_json(told.to_json()) == told
    untold = completion()
    assert Completion.from_json(untold.to_json()) == untold
    old = b'{"text":"a","token_ids":[1],"finish_reason":"stop","stop_reason":null,"prompt_tokens":1,' + (
        b'"completion_tokens":1,"endpoint":"u","seconds":0.5,"retries":0}'
    )
    assert Completion.from_json(old).logprobs is None
