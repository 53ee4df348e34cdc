"""Who watches a flow run from the process that it runs in: the terminal of the command that began it.

The flows know nobody but `audience()`. Where a worker runs them that is nobody, and Prefect's log and artifacts are all
that is seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Protocol

from treadle.core.context import NullProgress
from treadle.core.records import StageRecord
from treadle.core.runs import Run
from treadle.core.stage import Instance, Progress


class Audience(Protocol):
    """Is shown a flow run as it goes."""

    def begins(self, url: str) -> None:
        """The flow run has begun and has this page in Prefect's UI."""
        ...

    def tell(self, line: str) -> None:
        """What goes on beside the stages: servers, waiting."""
        ...

    def making(self, instance: Instance, run: Run) -> AbstractContextManager[Progress]:
        """Around the making of an instance: where its progress goes, too."""
        ...

    def made(self, record: StageRecord) -> None:
        """An instance is made, or was found made."""
        ...


class BothProgress:
    """Progress in two places. Implements `treadle.core.stage.Progress`."""

    def __init__(self, first: Progress, second: Progress) -> None:
        self._both = (first, second)

    def start(self, total: int, done: int, unit: str) -> None:
        """Begin, or begin again with another total."""
        for one in self._both:
            one.start(total, done, unit)

    def advance(self, count: int = 1, **facts: str | int | float) -> None:
        """Count finished units."""
        for one in self._both:
            one.advance(count, **facts)


class _Nobody:
    def begins(self, url: str) -> None:
        pass

    def tell(self, line: str) -> None:
        pass

    def making(self, instance: Instance, run: Run) -> AbstractContextManager[Progress]:
        return nullcontext(NullProgress())

    def made(self, record: StageRecord) -> None:
        pass


_NOBODY = _Nobody()
_watching: ContextVar[Audience] = ContextVar("treadle_audience", default=_NOBODY)


def audience() -> Audience:
    """Who watches the flow run at hand."""
    return _watching.get()


@contextmanager
def watched_by(watcher: Audience) -> Iterator[None]:
    """Show the flow runs that the block calls to `watcher`."""
    token = _watching.set(watcher)
    try:
        yield
    finally:
        _watching.reset(token)
