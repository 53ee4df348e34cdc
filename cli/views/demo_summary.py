"""Print the results of a demo."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from treadle.cli.views.figures import figures_view, report_view, sentences_view
from treadle.cli.views.summary import print_places
from treadle.cli.views.tables import console
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.untrusted.sanitize import sanitize
from treadle.tasks.summaries.stage_report import stage_report

if TYPE_CHECKING:
    from treadle.tasks.config import TreadleConfig


def print_demo_end(run: Run, records: Sequence[StageRecord], config: TreadleConfig, name: str) -> None:
    """Print the results of the demo's pools, training and models, write its report page, and print all folders."""
    from treadle.cli.views.demo_figures import demo_figures
    from treadle.tasks.page.build import report_page
    from treadle.tasks.page.file import write_page

    out = console()
    for record in records:
        if (report := stage_report(record, run)) is not None:
            shown = report_view if record.stage == "rl" else sentences_view  # its curves are worth showing
            out.print("\n", shown(record.address, report), sep="", end="")
    out.print(figures_view(demo_figures(run, config, name)))
    page = Path(run.storage.location()).absolute() / f"{run.run_id}.html"
    write_page(page, report_page([run]))
    click.echo(sanitize(f"\nreport: {page} (open it in a browser)\n"))
    print_places(run, records)
