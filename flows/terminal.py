"""Progress in the terminal: a bar with an estimate where there is one to watch, a line now and then where not."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from treadle.core.harmless import one_line
from treadle.tasks.pace import Pace

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

PLAIN_INTERVAL_S = 10.0
"""How often a line is written to a log or a pipe."""


class TerminalProgress:
    """Shows one stage's progress on standard error. Implements `treadle.core.stage.Progress`."""

    def __init__(self, label: str, *, quiet: bool = False) -> None:
        self._label = label
        self._quiet = quiet
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None
        self._pace = Pace()
        self._last_line = time.monotonic()

    def __enter__(self) -> TerminalProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def start(self, total: int, done: int, unit: str) -> None:
        """Begin, or begin again with another total."""
        self._pace.start(total, done, unit)
        self._last_line = time.monotonic()
        if self._quiet:
            return
        if done:
            self._line(f"{self._label}: {self._pace.counts()} were finished before")
        if sys.stderr.isatty():
            self._show_bar()

    def advance(self, count: int = 1, **facts: str | int | float) -> None:
        """Count finished units; facts are shown beside the bar."""
        self._pace.advance(count, facts)
        if self._quiet:
            return
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._pace.done, facts=self._facts_text())
        elif time.monotonic() - self._last_line >= PLAIN_INTERVAL_S:
            self._last_line = time.monotonic()
            numbers = ", ".join(filter(None, (self._pace.counts(), self._pace.estimate())))
            self._line(f"{self._label}: " + "; ".join(filter(None, (numbers, self._facts_text()))))

    def _show_bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        if self._bar is None:
            self._bar = Progress(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                TextColumn("{task.fields[facts]}", style="dim", markup=False), console=Console(stderr=True),
            )  # fmt: skip
            self._bar.start()
            self._task = self._bar.add_task(self._label, total=self._pace.total, completed=self._pace.done, facts="")
        elif self._task is not None:
            self._bar.reset(self._task, total=self._pace.total, completed=self._pace.done)

    def _facts_text(self) -> str:
        return one_line(", ".join(self._pace.facts()))

    @staticmethod
    def _line(text: str) -> None:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
