"""Print what the demo made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from treadle.cli.views.figures import figures_view, report_view, sentences_view
from treadle.cli.views.summary import print_places
from treadle.cli.views.tables import console
from treadle.core.figures import Figures
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.untrusted.sanitize import sanitize
from treadle.tasks.summaries.stage_report import stage_report

if TYPE_CHECKING:
    from treadle.tasks.config import TreadleConfig


def print_demo_end(run: Run, records: Sequence[StageRecord], config: TreadleConfig, name: str) -> None:
    """Print the results of the demo's pools, training and models, write its report page, and print all folders."""
    from treadle.tasks.page.build import report_page
    from treadle.tasks.page.file import write_page

    out = console()
    for record in records:
        if (report := stage_report(record, run)) is not None:
            shown = report_view if record.stage == "rl" else sentences_view  # its curves are worth showing
            out.print("\n", shown(record.address, report), sep="", end="")
    out.print(figures_view(_results(run, config, name)))
    page = Path(run.storage.location()).absolute() / f"{run.run_id}.html"
    write_page(page, report_page([run]))
    click.echo(sanitize(f"\nreport: {page} (open it in a browser)\n"))
    print_places(run, records)


def _results(run: Run, config: TreadleConfig, name: str) -> list[Figures]:
    """Return the tables of a demo: of its models, or of the environments that one model answers in."""
    from treadle.demo.demos import DEMOS, GAP_WORLD, ProgramsWorld
    from treadle.demo.dialogue_results import dialogue_figures, dialogues_of
    from treadle.demo.evolve.results import heldout_rollouts, ledger_figures
    from treadle.demo.evolve.world import LedgerWorld
    from treadle.demo.planning_results import answers_of, planning_figures
    from treadle.demo.results import differences, outcome

    models = config.flow.models
    if DEMOS[name].world is GAP_WORLD:
        return [planning_figures(answers_of(run, model, config.named_environments())) for model in models]
    if isinstance(DEMOS[name].world, LedgerWorld):
        rollouts = {model: heldout_rollouts(run, model) for model in models}
        return [ledger_figures(rollouts), differences(run, models, order=models)]
    if isinstance(DEMOS[name].world, ProgramsWorld):
        dialogues = {model: dialogues_of(run, model).values() for model in models}
        return [dialogue_figures(dialogues), differences(run, models, order=models)]
    return [outcome(run, models), differences(run, models)]
