"""Show progress in the terminal: a bar with an estimate, or occasional lines if there is no terminal."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING

from treadle.core.figures import duration
from treadle.core.runs.stage import Progress
from treadle.core.untrusted.sanitize import one_line
from treadle.tasks.progress_tracker import ProgressTracker

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

PLAIN_INTERVAL_S = 10.0
"""Interval of lines in a log or a pipe while units are finished."""
LONGEST_PAUSE_S, LONGEST_TIMED_PAUSE_S = 300.0, 30.0
"""Longest pauses between lines while no unit is finished; pauses double. The second applies if a usual time is known.
"""
_REFRESH_S = 1.0
_BRIEF_S = 2.0
"""A stage that ends sooner and never reports a total gets no bar."""


class TerminalProgress(Progress):
    """Progress of one stage on standard error. A thread updates the times while no unit is finished."""

    def __init__(
        self, label: str, *, quiet: bool = False, usual_s: float | None = None, later_stages_s: float | None = None
    ) -> None:
        """Set up the display of a stage.

        `usual_s`: usual duration of this stage, shown until it has an estimate of its own; `later_stages_s`: usual
        duration of all later stages.
        """
        self._label = label
        self._quiet = quiet
        self._usual_s, self._later_stages_s = usual_s, later_stages_s
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None
        self._tracker = ProgressTracker()
        self._pause_s = PLAIN_INTERVAL_S
        self._entered = self._last_line = time.monotonic()
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._refresh_loop, name=f"progress of {label}", daemon=True)

    def __enter__(self) -> TerminalProgress:
        self._entered = self._last_line = time.monotonic()
        if not self._quiet:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._bar is not None:
            self._bar.stop()

    def start(self, total: int, done: int, unit: str) -> None:
        """Start, or restart with another total."""
        with self._lock:
            self._tracker.start(total, done, unit)
            self._last_line, self._pause_s = time.monotonic(), PLAIN_INTERVAL_S
            if self._quiet:
                return
            if done:
                self._line(f"{self._label}: {self._tracker.counts()} already finished")
            if sys.stderr.isatty():
                self._show_bar()

    def advance(self, count: int = 1, **facts: str | int | float) -> None:
        """Count finished units; facts are shown next to the bar."""
        with self._lock:
            self._tracker.advance(count, facts)
            self._pause_s = PLAIN_INTERVAL_S
            if self._quiet:
                return
            if self._bar is not None:
                self._update_bar()
            elif time.monotonic() - self._last_line >= PLAIN_INTERVAL_S:
                self._say_line()

    def _refresh_loop(self) -> None:
        """Keep the display updated while the stage reports nothing, as when a server starts or a step takes long."""
        while not self._ended.wait(_REFRESH_S):
            with self._lock:
                if self._ended.is_set():
                    return
                if self._bar is not None:
                    self._update_bar()
                elif sys.stderr.isatty():
                    if time.monotonic() - self._entered >= _BRIEF_S:
                        self._show_bar()
                elif time.monotonic() - self._last_line >= self._pause_s:
                    self._say_line()
                    longest_s = LONGEST_PAUSE_S if self._usual_s is None else LONGEST_TIMED_PAUSE_S
                    self._pause_s = min(2 * self._pause_s, longest_s)

    def _say_line(self) -> None:
        self._last_line = time.monotonic()
        numbers = f"{self._counts_text()}, {self._times_text()}"
        self._line(f"{self._label}: " + "; ".join(filter(None, (numbers, self._facts_text()))))

    def _show_bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        if self._bar is None:
            self._bar = RichProgress(
                TextColumn("{task.description}", markup=False), BarColumn(bar_width=20),
                TextColumn("{task.fields[counts]}", markup=False), TextColumn("{task.fields[times]}", markup=False),
                TextColumn("{task.fields[facts]}", style="dim", markup=False), console=Console(stderr=True),
            )  # fmt: skip
            self._task = self._bar.add_task(self._label, total=None, counts="", times="", facts="")
            self._update_bar()
            self._bar.start()
        elif self._task is not None:
            self._bar.reset(self._task, total=self._tracker.total)
            self._update_bar()

    def _update_bar(self) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(
                self._task,
                total=self._tracker.total or None,
                completed=self._tracker.done,
                counts=self._counts_text(),
                times=self._times_text(),
                facts=self._facts_text(),
            )

    def _counts_text(self) -> str:
        return self._tracker.counts() if self._tracker.total else "in progress"

    def _times_text(self) -> str:
        """Return the time left by pace or usual duration, else the elapsed time; then the time left of all steps."""
        elapsed_s = time.monotonic() - self._entered
        left_s = self._tracker.left_s()
        if left_s is None and self._usual_s is not None and self._usual_s > elapsed_s:
            left_s = self._usual_s - elapsed_s
        told = f"{duration(elapsed_s)} so far" if left_s is None else f"about {duration(left_s)} left"
        if self._later_stages_s is None:
            return told
        return f"{told}; about {duration((left_s or 0.0) + self._later_stages_s)} left for all steps"

    def _facts_text(self) -> str:
        return one_line(", ".join(self._tracker.facts()))

    @staticmethod
    def _line(text: str) -> None:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
