"""Define the summary of a finished stage for terminal, UI and report page, and build its parts from a record."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from treadle.core.figures import Figures, escape, render_figures
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run

Metrics = Mapping[str, Any]


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


def group(metrics: Metrics, prefix: str) -> dict[str, int]:
    """Return the metrics whose names begin with a prefix, under their names without the prefix."""
    return {name.removeprefix(prefix): count for name, count in metrics.items() if name.startswith(prefix)}


def ranked_counts(title: str, name: str, unit: str, counts: Mapping[str, int]) -> Figures:
    """Return a table of counts, the largest first, without those that are 0."""
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return Figures(title, (name, unit), tuple((code, count) for code, count in ranked if count))


def reads(reader: StageRecord, made: StageRecord) -> bool:
    """Return whether `reader` was made from the current result of `made`."""
    outputs = set(made.outputs.values())
    return any(ref.artifact in outputs for refs in reader.inputs.values() for ref in refs)


def telemetry_rows(record: StageRecord, run: Run, kind: str) -> list[dict[str, Any]]:
    """Return the rows of a telemetry log of a stage; empty if it no longer exists."""
    import pyarrow.parquet as pq

    key = record.telemetry.get(kind)
    content = run.storage.get(key) if key is not None else None
    if content is None:
        return []
    rows: list[dict[str, Any]] = pq.ParquetFile(io.BytesIO(content)).read(use_threads=False).to_pylist()
    return rows
