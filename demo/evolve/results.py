"""Compare models by the tasks of the ledger that they solve at the service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from treadle.core.errors import RunError
from treadle.core.figures import Cell, Figures
from treadle.core.runs.address import Address
from treadle.core.runs.run import Run
from treadle.demo.evolve.world import SERVED
from treadle.eval.statistics import wilson_interval

_READ = ("question_key", "environment", "correct", "num_turns")
_LABELS = {
    "tutor": "tutor (rules, no language model)",
    "start": "start (SmolLM2-135M, fine-tuned on the tutor's rollouts)",
    "policy": "policy (start, then GRPO with hints and attribution)",
}


@dataclass(frozen=True, slots=True)
class HeldOutRollout:
    """One scored rollout of a held-out task.

    Attributes:
        is_solved: Whether the agent did everything that the task asks for, and nothing else.
        num_turns: Messages of the agent.
    """

    is_solved: bool
    num_turns: int


def heldout_rollouts(run: Run, model: str, iteration: int = 1) -> dict[str, list[HeldOutRollout]]:
    """Return the scored rollouts of a model at the service, by task. Raises RunError without scores."""
    scored = run.record(Address(iteration, "scores", model))
    if scored is None:
        raise RunError(f"run {run.run_id} has no scores of {model} in iteration {iteration}")
    found: dict[str, list[HeldOutRollout]] = {}
    for row in run.rows(scored.outputs["scores"]).rows(_READ):
        if row["environment"] == SERVED:
            made = HeldOutRollout(bool(row["correct"]), row["num_turns"])
            found.setdefault(row["question_key"], []).append(made)
    return found


def ledger_figures(rollouts: Mapping[str, Mapping[str, Sequence[HeldOutRollout]]]) -> Figures:
    """Return a table with one row per model; `rollouts` has the rollouts of each model by task."""
    rows = tuple(
        _row(model, len(tasks), [one for group in tasks.values() for one in group]) for model, tasks in rollouts.items()
    )
    header = ("held-out tasks of the ledger", "tasks", "rollouts", "solved % [95 %]", "messages")
    return Figures("Results", header, rows, "The demo shows the steps; so few of them prove no effect.")


def _row(model: str, num_tasks: int, rollouts: Sequence[HeldOutRollout]) -> tuple[Cell, ...]:
    label = _LABELS.get(model, model)
    if not rollouts:
        return label, 0, 0, "?", "?"
    share = fmean(one.is_solved for one in rollouts)
    low, high = wilson_interval(share, len(rollouts))
    solved = f"{100 * share:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
    return label, num_tasks, len(rollouts), solved, f"{fmean(one.num_turns for one in rollouts):.2f}"
