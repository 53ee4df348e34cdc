"""Share of tests passed and success over rollouts of programs, and the best of several samples per task."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from support.tables.scored_rollouts import scored

from treadle.eval.dataset_figures import dataset_figures
from treadle.eval.scored_rollout import ScoredRollout


def figures(rollouts: Iterable[ScoredRollout]) -> dict[str, float | None]:
    (found,) = dataset_figures(list(rollouts))
    return {name: sums.value for name, sums in found.sums.items()}


def of_tests(share: float, task: int, sample: int = 0) -> ScoredRollout:
    return scored(share, question_key=f"q{task}", sample_index=sample, domain="code", scorer="programs", parts=())


@pytest.mark.covers("sweet-8")
def test_tests_passed_and_success() -> None:
    found = figures(of_tests(passed / 10, task) for task, passed in enumerate((10, 10, 7, 0, 5)))
    assert (found["score"], found["accuracy"]) == (pytest.approx(0.64), pytest.approx(0.4))


@pytest.mark.covers("sweet-9")
def test_best_of_three_samples() -> None:
    rewards = ([1, 0.9, 0, 1], [0.4, 1, 0.3, 1], [1, 0.9, 0.7, 0])
    found = figures(
        of_tests(reward, task, sample) for sample, ours in enumerate(rewards) for task, reward in enumerate(ours)
    )
    assert round(found["score"] or 0, 4) == 0.6833 and round(found["accuracy"] or 0, 4) == 0.4167
    assert (found["best@3"], found["pass@3"]) == (pytest.approx(0.925), pytest.approx(0.75))
