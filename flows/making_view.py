"""What a command shows in its terminal while it makes instances, itself or in a flow run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from treadle.flows.options import say
from treadle.flows.summary import made_text
from treadle.flows.terminal import TerminalProgress
from treadle.flows.warnings import show_warnings

if TYPE_CHECKING:
    from treadle.core.records import StageRecord
    from treadle.core.runs import Run
    from treadle.core.stage import Instance
    from treadle.demo.steps import DemoSteps


class MakingView:
    """Progress, warnings and results of instances on standard error. Implements `tasks.prefect.audience.Audience`."""

    def __init__(self, *, quiet: bool = False, steps: DemoSteps | None = None) -> None:
        """`quiet`: only what goes on beside the stages is told; `steps`: those of the demo, which have words and times
        of their own."""
        self.records: list[StageRecord] = []
        """Of all that was made, in this order."""
        self.url = ""
        """Page of the flow run in Prefect's UI."""
        self._quiet, self._steps = quiet, steps

    def begins(self, url: str) -> None:
        """See `Audience.begins`."""
        self.url = url
        if url and not self._quiet:
            say(f"watch it in Prefect: {url}")

    def tell(self, line: str) -> None:
        """See `Audience.tell`."""
        say(line)

    @contextmanager
    def making(self, instance: Instance, run: Run) -> Iterator[TerminalProgress]:
        """See `Audience.making`."""
        words, usual_s, after_s = self._steps.begin(instance, run) if self._steps is not None else ("", None, None)
        if words and not self._quiet:
            say(words)
        warnings = show_warnings()
        try:
            with TerminalProgress(
                str(instance.address), quiet=self._quiet, usual_s=usual_s, after_s=after_s
            ) as progress:
                yield progress
        finally:
            warnings.tell_rest()
        if self._steps is not None:
            self._steps.end()

    def made(self, record: StageRecord) -> None:
        """See `Audience.made`."""
        self.records.append(record)
        if not self._quiet:
            click.echo(f"{record.address}: {made_text(record)}", err=True)
