"""Show a flow run in the terminal of the command that started it in the same process.

Flows report only to `flow_run_listener()`. In a worker it discards everything, and only Prefect's log and artifacts are
visible.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance, Progress


class FlowRunListener:
    """Listener that is shown a flow run while it runs. This one ignores everything."""

    def begins(self, url: str) -> None:
        """Report that the flow run has started and has this page in Prefect's UI."""

    def tell(self, line: str) -> None:
        """Report events other than stage progress: servers, waiting."""

    def running(self, instance: Instance, run: Run) -> AbstractContextManager[Progress]:
        """Return a context manager around running an instance; it yields a listener for its progress."""
        return nullcontext(Progress())

    def made(self, record: StageRecord) -> None:
        """Report that an instance has a result, new or reused."""


class TeeProgress(Progress):
    """Progress reported to two listeners."""

    def __init__(self, first: Progress, second: Progress) -> None:
        self._both = (first, second)

    def start(self, total: int, done: int, unit: str) -> None:
        """Start, or restart with another total."""
        for one in self._both:
            one.start(total, done, unit)

    def advance(self, count: int = 1, **facts: str | int | float) -> None:
        """Count finished units."""
        for one in self._both:
            one.advance(count, **facts)


_listener: ContextVar[FlowRunListener] = ContextVar("treadle_audience", default=FlowRunListener())  # noqa: B039 - it has no state


def flow_run_listener() -> FlowRunListener:
    """Return the listener of the current flow run."""
    return _listener.get()


@contextmanager
def reporting_to(listener: FlowRunListener) -> Iterator[None]:
    """Report flow runs called in the block to `listener`."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
