"""Make figures of what models solve of held-out tasks, over the runs of several seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from statistics import fmean
from typing import Protocol, TypeVar

from benchmarks.parts.figures import Figure
from treadle.core.runs.run import Run
from treadle.demo.results import compared
from treadle.eval.statistics import ratio_interval

NUM_SAMPLES = 10_000
"""Samples of the bootstrap."""


class Played(Protocol):
    """Finished rollout of a held-out task."""

    @property
    def is_solved(self) -> bool:
        """True if the task is solved."""
        ...

    @property
    def num_turns(self) -> int:
        """Number of messages that the agent wrote."""
        ...


T = TypeVar("T", bound=Played)
ByTask = Mapping[str, Sequence[T]]
"""Task -> its rollouts with a model."""


def pooled(runs: Sequence[Run], read: Callable[[Run], ByTask[T]]) -> dict[str, Sequence[T]]:
    """Return the rollouts of all seeds, by number of the run and task."""
    return {f"{number}/{key}": group for number, run in enumerate(runs) for key, group in read(run).items()}


def solved_figures(name: str, rollouts: ByTask[T], least_tasks: int) -> list[Figure]:
    """Return the share of the tasks that is solved, with its interval of 95 %, and the messages per rollout."""
    solved = [(fmean(one.is_solved for one in group), 1.0) for group in rollouts.values()]
    interval = ratio_interval(solved, num_samples=NUM_SAMPLES, seed=0)
    messages = fmean(one.num_turns for one in chain.from_iterable(rollouts.values()))
    return [
        Figure(name=f"{name}: held-out tasks", value=len(rollouts), unit="tasks", at_least=least_tasks),
        Figure(name=f"{name}: solved", value=interval.mean),
        Figure(name=f"{name}: solved, lower end", value=interval.low),
        Figure(name=f"{name}: solved, upper end", value=interval.high),
        Figure(name=f"{name}: messages", value=messages, unit="messages"),
    ]


def change_figures(name: str, before: ByTask[T], after: ByTask[T], at_least: float | None = None) -> list[Figure]:
    """Return by how much what is solved differs, task by task; `at_least` is a bound of the interval's lower end."""
    first, second = (
        {key: [float(one.is_solved) for one in group] for key, group in given.items()} for given in (before, after)
    )
    difference = compared(first, second).difference
    low, high = difference.ends
    assert low is not None and high is not None
    return [
        Figure(name=f"{name}: solved", value=difference.mean),
        Figure(name=f"{name}: lower end", value=low, at_least=at_least),
        Figure(name=f"{name}: upper end", value=high),
    ]
