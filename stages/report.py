"""Hold the summary of a finished stage for terminal, UI and report page."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from treadle.core.figures import Figures, escape, render_figures


@dataclass(frozen=True, slots=True)
class StageReport:
    """Summary of a finished stage as sentences and tables."""

    sentences: list[str]
    figures: list[Figures] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    """One row per training step; empty for other stages."""

    def main_rows(self) -> list[dict[str, Any]]:
        """Return rows for a page that sorts and filters them: the table of operators, or the training steps."""
        table = next((one for one in self.figures if one.header[0] == "operator"), None)
        return self.steps if table is None else table.as_dicts()

    def markdown(self) -> str:
        """Return the whole report as markdown."""
        return "\n\n".join([*map(escape, self.sentences), render_figures(self.figures, level=3)])
