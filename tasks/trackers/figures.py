"""Find the figures of a finished stage, with the names and steps that trackers get."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treadle.core.runs.address import Address
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run


@dataclass(frozen=True, slots=True)
class TrackedFigures:
    """Figures of one finished stage instance, or of one round of its pools.

    Attributes:
        address: The instance, such as `1/scores@base`.
        step: Number of the round, or of the phase for instances of a phase, else of the iteration. Rounds count from 0,
            which is for the initial rollouts; the others from 1.
        values: Name, such as `scores/base/num_right`, -> value; all are finite.
    """

    address: str
    step: int
    values: dict[str, float]


def tracked_figures(record: StageRecord, run: Run) -> list[TrackedFigures]:
    """Return the numbers of a stage's metrics; for `report` with the figures of each model and data set.

    For pools, the figures of each round follow. Names begin with stage and model. Phases and rounds count again in each
    iteration, so their names begin with the iteration from the second on.
    """
    address = Address.parse(record.address)
    qualifier = address.qualifier or ""
    phase = re.fullmatch(r"phase-(\d+)", qualifier)
    parts = [address.stage] if phase or not qualifier else [address.stage, qualifier]
    again = [f"iteration-{address.iteration}"] if address.iteration > 1 else []
    found = list(_numbers(record.metrics))
    if (summary := record.outputs.get("summary")) is not None:
        found += _scores(run, summary)
    step, prefix = (int(phase[1]), again) if phase else (address.iteration, [])
    figures = [_figures(record, step, [*prefix, *parts], found)]
    if (pools := record.outputs.get("pools")) is not None:
        rounds = enumerate(_rounds(run, pools))
        figures += [_figures(record, number, [*again, *parts, "round"], _numbers(counts)) for number, counts in rounds]
    return figures


def _figures(
    record: StageRecord, step: int, parts: Sequence[str], found: Iterable[tuple[list[str], float]]
) -> TrackedFigures:
    named = (("/".join(map(_name, [*parts, *names])), float(value)) for names, value in found)
    return TrackedFigures(record.address, step, {name: value for name, value in named if math.isfinite(value)})


def _rounds(run: Run, pools: Any) -> list[dict[str, float]]:
    """Return per round figures of the trajectories that it made, and the number of questions answered right by then."""
    made, right, calls = Counter[int](), Counter[int](), Counter[int]()
    first_right: dict[str, int] = {}
    for row in run.rows(pools).rows(("question_key", "round", "correct", "calls_requested")):
        number, question = row["round"], row["question_key"]
        made[number] += 1
        calls[number] += row["calls_requested"]
        if row["correct"]:
            right[number] += 1
            first_right[question] = min(number, first_right.get(question, number))
    return [
        {
            "num_trajectories": made[number],
            "num_correct": right[number],
            **({"calls_per_trajectory": calls[number] / made[number]} if made[number] else {}),
            "num_questions_correct": sum(first <= number for first in first_right.values()),
        }
        for number in range(max(made, default=-1) + 1)
    ]


def _numbers(metrics: Mapping[str, Any]) -> Iterator[tuple[list[str], float]]:
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            yield from (([name, *names], number) for names, number in _numbers(value))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield [name], value


def _scores(run: Run, summary: Any) -> Iterator[tuple[list[str], float]]:
    from treadle.eval.metrics import is_figure

    for row in run.rows(summary).rows():
        if is_figure(row["figure"]) and row["value"] is not None:
            yield [row["model"], row["dataset"], row["figure"]], row["value"]


def _name(part: str) -> str:
    """Return a part of a name, with characters that some tracker does not accept replaced by `_`."""
    return re.sub(r"[^A-Za-z0-9_. -]+", "_", part)
