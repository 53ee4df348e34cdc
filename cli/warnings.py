"""Show warnings of a running stage in the terminal, so that an outage does not look like a hang.

All warnings are in the attempt's log. The terminal shows the first BURST of each kind (one log call), and later ones
after pauses that double. The others are counted, and the count is shown with the next one or at the end.
"""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import dataclass

from treadle.core.untrusted.sanitize import one_line

_LOG_ONLY = ("%s %s is pending",)
"""Prefixes of messages about single units, which are not shown: the stage reports how many there are."""
BURST = 2
FIRST_PAUSE_S, LONGEST_PAUSE_S = 10.0, 600.0


@dataclass(slots=True)
class _WarningKind:
    """Warnings of one log call."""

    num_shown: int = 0
    num_omitted: int = 0
    result_origin: float = float("-inf")
    pause_s: float = FIRST_PAUSE_S

    def is_due(self, now: float) -> bool:
        if self.num_shown >= BURST:
            if now - self.result_origin < self.pause_s:
                return False
            self.pause_s = min(2 * self.pause_s, LONGEST_PAUSE_S)
        self.num_shown, self.result_origin = self.num_shown + 1, now
        return True


class TerminalWarnings(logging.Handler):
    """Handler that writes warnings as single lines to standard error, above a progress bar if there is one."""

    def __init__(self, log: str) -> None:
        """Set up the handler; `log`: where omitted warnings can be read."""
        super().__init__(logging.WARNING)
        self._log = log
        self._kinds: dict[str, _WarningKind] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Show a warning, or count it.

        Errors are ignored, because the last line of the command reports the error that ended it.
        """
        if record.levelno >= logging.ERROR or str(record.msg).startswith(_LOG_ONLY):
            return
        kind = self._kinds.setdefault(f"{record.name} {record.msg}", _WarningKind())
        if not kind.is_due(time.monotonic()):
            kind.num_omitted += 1
            return
        more = f" (and {kind.num_omitted:,} more like it)" if kind.num_omitted else ""
        kind.num_omitted = 0
        self._line(record.getMessage() + more)

    def report_omitted(self) -> None:
        """Print the number of omitted warnings at the end of a stage, and reset all counts."""
        count = sum(kind.num_omitted for kind in self._kinds.values())
        self._kinds = {}
        if count:
            self._line(f"{count:,} more like these are in {self._log}")

    @staticmethod
    def _line(text: str) -> None:
        # A progress bar replaces standard error, so this is written above it.
        sys.stderr.write(f"warning: {one_line(text)}\n")
        sys.stderr.flush()


def show_warnings(of: str = "treadle", log: str = "the log of the attempt") -> TerminalWarnings:
    """Show the warnings of a logger and its children from now on; return the same handler for every call.

    `log`: where omitted warnings can be read.
    """
    logger = logging.getLogger(of)
    for handler in logger.handlers:
        if isinstance(handler, TerminalWarnings):
            return handler
    handler = TerminalWarnings(log)
    logger.addHandler(handler)
    return handler
