"""Show the progress of instances in the terminal of a command, with or without a flow run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from treadle.cli.options import say
from treadle.cli.terminal import TerminalProgress
from treadle.cli.views.summary import result_text
from treadle.cli.warnings import show_warnings
from treadle.tasks.prefect.flow_run_listener import FlowRunListener

if TYPE_CHECKING:
    from treadle.core.runs.records import StageRecord
    from treadle.core.runs.run import Run
    from treadle.core.runs.stage import Instance
    from treadle.demo.steps import DemoSteps


class ProgressView(FlowRunListener):
    """Display of progress, warnings and results on standard error."""

    def __init__(self, *, quiet: bool = False, steps: DemoSteps | None = None) -> None:
        """Set up the display.

        `quiet`: only events other than stage progress are shown; `steps`: the instances of a demo, with their
        own descriptions and durations.
        """
        self.records: list[StageRecord] = []
        """Records of all finished instances, in order."""
        self.url = ""
        """Page of the flow run in Prefect's UI."""
        self._quiet, self._steps = quiet, steps

    def begins(self, url: str) -> None:
        """Show the address of the flow run's page, as in `FlowRunListener.begins`."""
        self.url = url
        if url and not self._quiet:
            say(f"watch it in Prefect: {url}")

    def tell(self, line: str) -> None:
        """Show a line, as in `FlowRunListener.tell`."""
        say(line)

    @contextmanager
    def running(self, instance: Instance, run: Run) -> Iterator[TerminalProgress]:
        """Show progress while an instance runs, as in `FlowRunListener.running`."""
        words, usual_s, later_stages_s = (
            self._steps.begin(instance, run) if self._steps is not None else ("", None, None)
        )
        if words and not self._quiet:
            say(words)
        warnings = show_warnings()
        try:
            with TerminalProgress(
                str(instance.address), quiet=self._quiet, usual_s=usual_s, later_stages_s=later_stages_s
            ) as progress:
                yield progress
        finally:
            warnings.report_omitted()
        if self._steps is not None:
            self._steps.end()

    def made(self, record: StageRecord) -> None:
        """Show the result, as in `FlowRunListener.made`."""
        self.records.append(record)
        if not self._quiet:
            click.echo(f"{record.address}: {result_text(record)}", err=True)
