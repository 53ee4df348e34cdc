"""Read and write the objective in a task's payload, which makes a new task of an original one.

The environment opens the state of the original task and shows the text of the new one. Documented in
docs/behaviour/exploration.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

OBJECTIVE = "objective"
"""Field of the payload; original tasks, from files or environments, must not have it."""


@dataclass(frozen=True, slots=True)
class Objective:
    """New task on the state of an original task, added to the original task's payload.

    Attributes:
        evaluator: Name of the grader of the new task's rollouts; empty while an agent explores.
        reference: Actions with which an agent fulfilled it, in order; empty while an agent explores.
    """

    evaluator: str = ""
    reference: Sequence[str] = ()


def objective_of(payload: Mapping[str, Any]) -> Objective | None:
    """Return the objective in a payload; None for an original task."""
    found = payload.get(OBJECTIVE)
    return None if found is None else Objective(found["evaluator"], tuple(found["reference"]))


def with_objective(payload: Mapping[str, Any], objective: Objective) -> dict[str, Any]:
    """Return a payload with an objective, which replaces any earlier one."""
    return {**payload, OBJECTIVE: {"evaluator": objective.evaluator, "reference": list(objective.reference)}}
