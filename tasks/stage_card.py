"""A finished stage as the Prefect UI shows it. Prefect-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from treadle.core.figures import escape
from treadle.core.records import StageRecord
from treadle.core.runs import Run
from treadle.eval.layout import HEADLINE, headline_cells, summary_lines
from treadle.tasks.stage_report import stage_report


@dataclass(frozen=True, slots=True)
class StageCard:
    """A finished stage for the Prefect UI."""

    markdown: str
    rows: list[dict[str, Any]]
    """Rows of a table of its own: scores, or the yield of operators; empty for other stages."""


def stage_card(record: StageRecord, run: Run) -> StageCard:
    """What a finished stage came to, with digests and places, as markdown; and its main table."""
    lines = [f"**{record.address}** of run `{run.run_id}`, attempt {record.attempt}", ""]
    lines += ["| table | rows | digest |", "|---|---|---|"]
    lines += [f"| {kind} | {ref.num_rows:,} | `{ref.digest}` |" for kind, ref in sorted(record.outputs.items())]
    report = stage_report(record, run)
    lines += ["", report.markdown()] if report is not None else _metrics(record.metrics)
    lines += ["", f"From {record.started_at} to {record.finished_at}; fingerprint `{record.fingerprint[:12]}`."]
    lines += [f"Data: {escape(run.storage.location(ref.folder))}" for _, ref in sorted(record.outputs.items())]
    if report is not None:
        return StageCard("\n".join(lines), report.main_rows())
    rows = run.rows(record.outputs["summary"]).rows() if "summary" in record.outputs else ()
    return StageCard(
        "\n".join(lines), [dict(zip(HEADLINE, headline_cells(line), strict=True)) for line in summary_lines(rows)]
    )


def _metrics(metrics: Mapping[str, Any]) -> list[str]:
    rows = [f"| {escape(name)} | {_plain(value)} |" for name, value in _flat(metrics)]
    return ["", "| metric | value |", "|---|---|", *rows]


def _flat(metrics: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in metrics.items():
        found += _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else [(prefix + name, value)]
    return found


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) else escape(str(value))
