"""Show errors that are meant for users as one line in Prefect's logs, without a traceback."""

from __future__ import annotations

import logging

from treadle.core.errors import TreadleError
from treadle.core.untrusted.sanitize import one_line

_LOGGERS = ("prefect.flow_runs", "prefect.task_runs", "prefect.engine")
"""Loggers with which Prefect's engine reports that a flow, a task or the process of a flow run failed."""


class BriefErrors(logging.Filter):
    """Filter that replaces the traceback of a TreadleError by its message; other errors are bugs and keep theirs."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Shorten the record if it reports a TreadleError; never drop one."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, TreadleError):
            record.msg, record.args = "%s: %s", (type(error).__name__, one_line(str(error)))
            record.exc_info = record.exc_text = None
        return True


_BRIEF_ERRORS = BriefErrors()


def report_errors_briefly() -> None:
    """Let Prefect report errors that are meant for users in one line, in this process from now on."""
    for name in _LOGGERS:
        # Adding the same filter twice has no effect.
        logging.getLogger(name).addFilter(_BRIEF_ERRORS)
