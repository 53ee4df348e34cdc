"""Build the section with the figures of parts of data sets: by level, topic or language, and by length of responses."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.core.figures import Figures
from treadle.report.groups import group_tables
from treadle.report.page.document import Fold, Part, Section
from treadle.report.tables import GROUPS
from treadle.tasks.page.models import EvaluatedModel

_READING = (
    "Each table splits a data set by a column of its questions, or by how much the model wrote. Small groups have wide "
    "intervals: differences within these may be chance."
)
_MAX_OPEN = 3
"""Maximum number of tables that are shown unfolded; if there are more, all are folded."""


def groups_section(models: Sequence[EvaluatedModel]) -> list[Section]:
    """Return the section with a table per data set and split, with all models; empty without any."""
    rows = []
    for source in dict.fromkeys(model.source for model in models):
        labels = {model.name: model.label for model in models if model.source is source}
        report = next(model.report for model in models if model.source is source)
        for row in source.rows(report.outputs.get(GROUPS.kind), report.address):
            if row["model"] in labels:
                rows.append({**row, "model": labels[row["model"]]})
    tables = group_tables(rows, in_percent=True)
    parts: Sequence[Part] = tables if len(tables) <= _MAX_OPEN else [_folded(table) for table in tables]
    return [Section("groups", "Parts of data sets", _READING, parts)] if tables else []


def _folded(table: Figures) -> Fold:
    return Fold(table.title, [table])
