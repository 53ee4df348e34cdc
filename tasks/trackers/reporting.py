"""Report a finished stage to the trackers of `flow.trackers`; a tracker never fails or blocks a stage."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from importlib.util import find_spec

from treadle.core.engines.cache import Notify
from treadle.core.errors import ConfigError
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.untrusted.sanitize import one_line

_log = logging.getLogger(__name__)
MAX_WAIT_S = 60.0
"""Seconds to wait for one tracker before it counts as dead."""
_dead: set[str] = set()
"""Trackers that failed in this process, and are left out from then on."""


def trackers_of(run: Run) -> tuple[str, ...]:
    """Return the trackers that the run's configuration names; raise ConfigError if one needs a missing package."""
    named = tuple((run.config().get("flow") or {}).get("trackers") or ())
    if not named:
        return ()
    from treadle.tasks.trackers.services import TRACKERS

    for name in named:
        package = TRACKERS[name][1]
        if package and find_spec(package) is None:
            raise ConfigError(
                f"flow.trackers names {name!r}, whose package is not installed here: pip install {package}"
            )
    return named


def report_to_trackers(trackers: Sequence[str], record: StageRecord, run: Run, notify: Notify) -> None:
    """Send the figures of a finished stage to each tracker.

    If a tracker fails, `notify` gets a line about it, and the tracker is left out from then on.
    """
    if record.reused or not (living := [name for name in trackers if name not in _dead]):
        return
    from treadle.tasks.trackers.figures import tracked_figures
    from treadle.tasks.trackers.services import TRACKERS

    try:
        figures = tracked_figures(record, run)
    except Exception as error:  # noqa: BLE001 - the stage is done, even if its figures cannot be read
        _log.warning("%s could not be reported to trackers: %s", record.address, one_line(str(error)))
        return
    for name in living:
        problems = [f"no answer in {MAX_WAIT_S:.0f} s"]

        def write(name: str = name, problems: list[str] = problems) -> None:
            try:
                TRACKERS[name][0](run, figures)
                problems.clear()
            except BaseException as error:  # noqa: BLE001 - whatever the package raises, the stage is done
                problems[:] = [one_line(f"{type(error).__name__}: {error}")]

        # The thread may hang for as long as the process lives; it does not keep the process from ending.
        thread = threading.Thread(target=write, name=f"tracker-{name}", daemon=True)
        thread.start()
        thread.join(MAX_WAIT_S)
        if problems:
            _dead.add(name)
            notify(f"tracker {name} gets no figures from here on: {problems[0]}")
