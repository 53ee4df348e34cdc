"""Measure the seconds of the rollouts that a report is about, from the telemetry of their stages.

Times differ between runs with equal rollouts, so no table of a report has them: they are read when it is shown.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from treadle.core.errors import ArtifactError, StorageError
from treadle.core.figures import Cell, Figures
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.environments.rollouts.measured import is_measured
from treadle.environments.rollouts.tables import ROLLOUT_TELEMETRY
from treadle.report.layout import figure_cell, fixed, summary_lines
from treadle.stages.report import telemetry_rows
from treadle.tasks.summaries.report_tables import maker_of, report_tables

Seconds = Mapping[tuple[str, str], Sequence[float]]
"""(model as in the report, data set) -> wall seconds of its measured rollouts."""


def report_seconds(report: StageRecord, run: Run) -> Seconds:
    """Return the seconds of the measured rollouts of a report; nothing for scores that were computed again since.

    Rollouts that were resumed or ended by infrastructure are not measured.
    """
    import pyarrow as pa

    records, found = run.readable_records()[0], dict[tuple[str, str], list[float]]()
    for given, prefix in report_tables(report):
        scores = maker_of(given, records)
        makers = [maker_of(one, records) for one in scores.inputs.get("rollouts", ())] if scores is not None else []
        try:
            logs = [telemetry_rows(made, run, ROLLOUT_TELEMETRY.kind) for made in makers if made is not None]
            times = {
                row["rollout_key"]: row["seconds"]
                for log in logs
                for row in log
                if is_measured(row["seconds"], row["model_seconds"], row["tool_seconds"])
            }
            if not times:
                continue
            for row in run.rows(given.artifact).rows(("rollout_key", "model", "dataset")):
                if row["rollout_key"] in times:
                    place = prefix + row["model"], row["dataset"]
                    found.setdefault(place, []).append(times[row["rollout_key"]])
        except (ArtifactError, StorageError, KeyError, pa.ArrowException, OSError):
            continue  # The report page names what cannot be read.
    return found


def seconds_table(rows: Sequence[Mapping[str, Any]], seconds: Seconds) -> Figures | None:
    """Return a table of turns and seconds next to accuracy, by model and data set; None without measured seconds.

    `rows` are the rows of the report's summary.
    """
    body: list[tuple[Cell, ...]] = []
    for line in summary_lines(rows):
        if measured := seconds.get((line.model, line.dataset)):
            times = (statistics.fmean(measured), statistics.median(measured))
            cells = (figure_cell(line, name) for name in ("accuracy", "num_turns"))
            body.append((line.model, line.dataset, *cells, *(fixed(value, 2) for value in times), len(measured)))
    header = ("model", "data set", "accuracy", "turns", "seconds", "median", "measured")
    return Figures("Turns and seconds", header, tuple(body), num_names=2) if body else None
