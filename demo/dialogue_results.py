"""Compare models by the programs that they write after dialogues about held-out tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from treadle.core.errors import RunError
from treadle.core.figures import Cell, Figures
from treadle.core.runs.address import Address
from treadle.core.runs.run import Run
from treadle.demo.programs.tasks import HELDOUT
from treadle.eval.statistics import wilson_interval

_READ = ("question_key", "dataset", "correct", "score", "num_turns")
_LABELS = {
    "tutor": "tutor (rules, no language model)",
    "start": "start (SmolLM2-135M, fine-tuned on the tutor's dialogues)",
    "policy": "policy (start, trained by preferences between turns)",
}


@dataclass(frozen=True, slots=True)
class Dialogue:
    """One scored dialogue.

    Attributes:
        is_solved: Whether it is right: the program passes all hidden tests, or the page is the target page.
        score: Share of the hidden tests that it passes, or similarity of the pages; None without a verdict.
        num_turns: Messages of the agent.
    """

    is_solved: bool
    score: float | None
    num_turns: int


def dialogues_of(run: Run, model: str, iteration: int = 1, *, dataset: str = HELDOUT) -> dict[str, list[Dialogue]]:
    """Return the scored dialogues of a model about held-out tasks, by question key. Raises RunError without scores."""
    scored = run.record(Address(iteration, "scores", model))
    if scored is None:
        raise RunError(f"run {run.run_id} has no scores of {model} in iteration {iteration}")
    found: dict[str, list[Dialogue]] = {}
    for row in run.rows(scored.outputs["scores"]).rows(_READ):
        if row["dataset"] == dataset:
            dialogue = Dialogue(bool(row["correct"]), row["score"], row["num_turns"])
            found.setdefault(row["question_key"], []).append(dialogue)
    return found


def dialogue_figures(dialogues: Mapping[str, Iterable[Sequence[Dialogue]]]) -> Figures:
    """Return a table with one row per model; `dialogues` has the dialogues of each model, grouped by task."""
    rows = tuple(dialogue_row(_LABELS.get(model, model), groups) for model, groups in dialogues.items())
    header = ("held-out tasks", "dialogues", "solved % [95 %]", "tests passed %", "messages")
    note = "Solved: the program passes all hidden tests. Messages: mean number of those that the agent wrote."
    return Figures("Dialogues about programs", header, rows, note)


def dialogue_row(label: str, groups: Iterable[Sequence[Dialogue]]) -> tuple[Cell, ...]:
    """Return the row of a model: label, dialogues, share solved with its 95 % interval, mean score, mean messages.

    Share and mean score are in per cent; a value that is unknown is `?`.
    """
    dialogues = [one for group in groups for one in group]
    if not dialogues:
        return label, 0, "?", "?", "?"
    share = fmean(one.is_solved for one in dialogues)
    low, high = wilson_interval(share, len(dialogues))
    scores = [one.score for one in dialogues if one.score is not None]
    return (
        label,
        len(dialogues),
        f"{100 * share:.1f} [{100 * low:.1f}, {100 * high:.1f}]",
        f"{100 * fmean(scores):.1f}" if scores else "?",
        f"{fmean(one.num_turns for one in dialogues):.2f}",
    )
