"""Show the progress of a stage as a live artifact in the Prefect UI."""

from __future__ import annotations

import contextvars
import logging
import threading
from uuid import UUID

from treadle.core.figures import escape
from treadle.core.runs.stage import Progress
from treadle.tasks.prefect.ui_artifacts import create_artifact, update_progress
from treadle.tasks.progress_tracker import ProgressTracker

logger = logging.getLogger(__name__)

POST_INTERVAL_S = 3.0
"""Update interval of the artifact: short enough to watch, long enough for Prefect's database."""


class PrefectProgress(Progress):
    """Progress posted from a separate thread, so that the stage's event loop never waits for Prefect.

    An unreachable Prefect server causes a log line, never a failure of the stage.
    """

    def __init__(self, key: str, label: str, *, even_if_brief: bool = True) -> None:
        """Set up without posting; `even_if_brief`: post once at the end if the work ends before the first update."""
        self._even_if_brief = even_if_brief
        self._key = key
        self._label = label
        self._tracker = ProgressTracker()
        self._changed = threading.Event()
        self._stop = threading.Event()
        self._artifact: UUID | None = None
        # The run context decides to which task run the artifact belongs.
        self._thread = threading.Thread(target=contextvars.copy_context().run, args=(self._post,), daemon=True)

    def __enter__(self) -> PrefectProgress:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=2 * POST_INTERVAL_S)

    def start(self, total: int, done: int, unit: str) -> None:
        """Start, or restart with another total."""
        self._tracker.start(total, done, unit)
        self._changed.set()

    def advance(self, count: int = 1, **facts: str | int | float) -> None:
        """Count finished units; facts are shown in the description."""
        self._tracker.advance(count, facts)
        self._changed.set()

    def _post(self) -> None:
        while not self._stop.wait(POST_INTERVAL_S):
            self._post_once()
        if self._artifact is not None or self._even_if_brief:
            self._post_once()

    def _post_once(self) -> None:
        total = self._tracker.total  # Read once: the stage may begin again without a total.
        if not self._changed.is_set() or not total:
            return
        self._changed.clear()
        percent = 100.0 * min(self._tracker.done / total, 1.0)
        try:
            if self._artifact is None:
                self._artifact = create_artifact("progress", self._key, percent, self._text())
            else:
                update_progress(self._artifact, percent, self._text())
        except Exception as error:  # noqa: BLE001 - whatever Prefect's client raises, the stage continues
            self._changed.set()  # Posted again with the next update, or at the end.
            logger.warning("progress of %s could not be shown in Prefect: %s", self._label, error)

    def _text(self) -> str:
        parts = [self._tracker.counts(), self._tracker.estimate(), *map(escape, self._tracker.facts())]
        return f"{self._label}: " + ", ".join(part for part in parts if part)
