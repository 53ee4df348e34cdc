"""Compare models by the pages that they write after dialogues about held-out tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from treadle.core.figures import Figures
from treadle.demo.dialogue_results import Dialogue, dialogue_row

_LABELS = {
    "hasty": "hasty (rules: one page, without a look at it)",
    "tutor": "tutor (rules: pages until the human is content)",
}


def page_figures(dialogues: Mapping[str, Iterable[Sequence[Dialogue]]]) -> Figures:
    """Return a table with one row per model; `dialogues` has the dialogues of each model, grouped by task."""
    rows = tuple(dialogue_row(_LABELS.get(model, model), groups) for model, groups in dialogues.items())
    header = ("held-out tasks", "dialogues", "same % [95 %]", "similarity x 100", "messages")
    note = (
        "Similarity of the pictures of last page and wanted page, by EfficientNet-Lite0 and not by CLIP, so it cannot "
        "be compared with published figures. Same: at least `min_correct`. Messages: mean number of the agent's."
    )
    return Figures("Dialogues about pages", header, rows, note)
