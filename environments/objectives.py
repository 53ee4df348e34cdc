"""Read and write the part of a task's payload that turns it into another task on the same state.

Its environment opens the state of the task that it was made from, and shows the text of the task itself. Documented in
docs/behaviour/exploration.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

OBJECTIVE = "objective"
"""Field of the payload; tasks of files and of environments must not have it."""


@dataclass(frozen=True, slots=True)
class Objective:
    """Task on the state of another one, whose payload it is added to.

    Attributes:
        evaluator: Name of the grader of its rollouts; empty while an agent explores.
        reference: Actions of an agent that reached it, in their order; empty while an agent explores.
    """

    evaluator: str = ""
    reference: Sequence[str] = ()


def objective_of(payload: Mapping[str, Any]) -> Objective | None:
    """Return the objective in a payload; None for an original task."""
    found = payload.get(OBJECTIVE)
    return None if found is None else Objective(found["evaluator"], tuple(found["reference"]))


def with_objective(payload: Mapping[str, Any], objective: Objective) -> dict[str, Any]:
    """Return a payload with an objective in place of the one that it may have."""
    return {**payload, OBJECTIVE: {"evaluator": objective.evaluator, "reference": list(objective.reference)}}
