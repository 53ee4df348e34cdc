"""Compare models by the pages that they write after dialogues about held-out tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from treadle.core.figures import Cell, Figures
from treadle.demo.dialogue_results import Dialogue
from treadle.eval.statistics import wilson_interval

_LABELS = {
    "hasty": "hasty (rules: one page, without a look at it)",
    "tutor": "tutor (rules: pages until the human is content)",
}


def page_figures(dialogues: Mapping[str, Iterable[Sequence[Dialogue]]]) -> Figures:
    """Return a table with one row per model; `dialogues` are those of each of its tasks."""
    rows = tuple(_row(model, [one for group in groups for one in group]) for model, groups in dialogues.items())
    header = ("held-out tasks", "dialogues", "same % [95 %]", "similarity x 100", "messages")
    note = (
        "Similarity of the pictures of last page and wanted page, by EfficientNet-Lite0 and not by CLIP, so it cannot "
        "be compared with published figures. Same: at least `min_correct`. Messages: mean number of the agent's."
    )
    return Figures("Dialogues about pages", header, rows, note)


def _row(model: str, dialogues: Sequence[Dialogue]) -> tuple[Cell, ...]:
    label = _LABELS.get(model, model)
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
