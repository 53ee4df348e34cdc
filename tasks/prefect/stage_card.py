"""Render a finished stage for the Prefect UI."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from treadle.core.figures import Figures, duration, escape, render_figures, render_table
from treadle.core.runs.records import StageRecord
from treadle.core.runs.reused import result_origin
from treadle.core.runs.run import Run
from treadle.report.layout import headline_table, summary_lines
from treadle.tasks.page.cost import role_usages, seconds_of, usage_table
from treadle.tasks.page.sources import PageRun
from treadle.tasks.summaries.report_tables import imported_lines
from treadle.tasks.summaries.stage_report import stage_report

_FILES = {"report": "report.md", "figures": "summary.csv"}


@dataclass(frozen=True, slots=True)
class StageCard:
    """A finished stage for the Prefect UI."""

    markdown: str
    rows: list[dict[str, Any]]
    """Rows for a separate table: scores, or the yield of operators; empty for other stages."""
    links: str = ""
    """Markdown links to the report's text and figures; empty for other stages. The link text is the whole address,
    because Prefect's pages show links to a file or a bucket only as text.
    """


def stage_card(record: StageRecord, run: Run) -> StageCard:
    """Return inputs, outputs, usage and metrics of a finished stage as markdown, with digests; and its main table."""
    lines = [f"**{record.address}** of run `{run.run_id}`, {_made(record, run)}", ""]
    lines.append(render_table(_artifacts(record)))
    report = stage_report(record, run)
    lines += ["", report.markdown()] if report is not None else _metrics(record.metrics)
    if report is None or not any("sampled tokens" in table.header for table in report.figures):
        lines += _used(record, run)
    lines += ["", _times(record)]
    lines += [f"Data: {escape(run.storage.location(ref.folder))}" for _, ref in sorted(record.outputs.items())]
    lines += _commands(record, run)
    if report is not None:
        return StageCard("\n".join(lines), [_cells(row) for row in report.main_rows()])
    if (summary := record.outputs.get("summary")) is None:
        return StageCard("\n".join(lines), [])
    lines += map(escape, imported_lines(record, run))
    rows = headline_table(summary_lines(run.rows(summary).rows())).as_dicts()
    folder = run.storage.location(summary.folder)
    links = [f"- {what}: {_link(f'{folder}/{name}')}" for what, name in _FILES.items()]
    return StageCard("\n".join(lines), rows, "\n".join(links))


def _artifacts(record: StageRecord) -> Figures:
    read = [(f"read {kind}", ref.address, ref.artifact) for kind, refs in sorted(record.inputs.items()) for ref in refs]
    made = [(f"made {kind}", record.address, ref) for kind, ref in sorted(record.outputs.items())]
    rows = tuple((what, address, ref.num_rows, ref.digest) for what, address, ref in (*read, *made))
    return Figures("", ("read or made", "of", "rows", "digest"), rows, num_names=2)


def _used(record: StageRecord, run: Run) -> list[str]:
    """Return requests, tokens and cost by role; empty if no model was called or the result was reused."""
    try:
        uses = [] if record.reused_from else list(role_usages(PageRun(run), record))
    except (KeyError, TypeError):
        return []  # Metrics of another version: the card shows them unchanged.
    return ["", render_figures([usage_table(uses)], level=3)] if uses else []


def _times(record: StageRecord) -> str:
    """Return how long the attempt that completed the stage took, and when."""
    span = f"from {record.started_at} to {record.finished_at}"
    return f"Took {duration(seconds_of(record))}, {span}; fingerprint `{record.fingerprint[:12]}`."


def _made(record: StageRecord, run: Run) -> str:
    imported = f"imported from {escape(record.imported_from)}, " if record.imported_from else ""
    if not record.reused_from:
        return f"{imported}attempt {record.attempt}"
    if address := result_origin(record, run.record):
        return f"{imported}the same as {address}"
    return f"{imported}reused from {record.reused_from}, which has been rerun since"


def _commands(record: StageRecord, run: Run) -> list[str]:
    """Return the commands that show more details."""
    options = shlex.join(["--run", run.run_id, "--root", run.storage.location()])
    commands = []
    if record.outputs.keys() & {"rollouts", "pools", "scores"}:
        commands.append(f"Rows, one by one: treadle view {options}")
    if "summary" in record.outputs:
        commands.append(f"As a page: treadle report {options} --out report.html --open")
    return [escape(command) for command in commands]


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without cells that the UI would render as a markdown list."""
    return {name: "–" if cell == "-" else cell for name, cell in row.items()}


def _link(location: str) -> str:
    if "://" in location:
        return f"[{escape(location)}]({quote(location, safe=':/')})"
    path = Path(location).absolute()
    return f"[{escape(str(path))}]({path.as_uri()})"


def _metrics(metrics: Mapping[str, Any]) -> list[str]:
    rows = tuple((name, _plain(value)) for name, value in _flat(metrics))
    return ["", render_table(Figures("", ("metric", "value"), rows))] if rows else []


def _flat(metrics: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in metrics.items():
        found += _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else [(prefix + name, value)]
    return found


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
