"""Keep the companions of a run: start them in order, watch them, stop them with the run."""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from treadle.core.companions.kept import check_usable, kept_companion
from treadle.core.companions.readiness import answers
from treadle.core.companions.settings import CompanionSettings
from treadle.core.companions.start import companions_folder, failed, start_ready
from treadle.core.engines.cache import Notify, cache_lock
from treadle.core.engines.process import Child, log_tail
from treadle.core.errors import EngineError

_WATCH_S = 1.0
_MISSES = 3
_held: set[CompanionSettings] = set()
"""Companions that a block of this process is running: a block inside it, as of a flow that a command calls, does not
start them again."""


@contextlib.contextmanager
def running_companions(wanted: Sequence[CompanionSettings], notify: Notify) -> Iterator[None]:
    """Run companions during a block: start them in this order, stop them in the reverse one.

    One that is kept running is used and left alone, and so is a program of others that is ready, unless `reuse` is
    false. All others are children of this process: none outlives it, even if it is killed. `notify` gets lines about
    starts, and one if a companion ends during the block. Raises EngineError if one does not become ready, or is kept
    running with other settings; ConfigError for a missing folder or variable.
    """
    new = [one for one in wanted if one not in _held]
    if not new:
        yield
        return
    companions = _Companions(notify)
    try:
        for settings in new:
            companions.start(settings)
        _held.update(new)
        companions.watch()
        yield
    finally:
        _held.difference_update(new)
        companions.stop()


class _Used:
    """A companion that another process started."""

    def __init__(self, title: str, is_there: Callable[[], bool]) -> None:
        self.title, self._is_there, self._num_missed = title, is_there, 0

    def is_gone(self) -> bool:
        """Return whether `_MISSES` checks in a row failed; a busy companion may answer late once."""
        self._num_missed = 0 if self._is_there() else self._num_missed + 1
        return self._num_missed >= _MISSES


class _Companions:
    """The companions of a block of code: its child processes, and programs that were running already."""

    def __init__(self, notify: Notify) -> None:
        self._notify = notify
        self._children: list[Child] = []
        self._used: list[_Used] = []
        self._ended = threading.Event()
        self._watcher: threading.Thread | None = None

    def start(self, settings: CompanionSettings) -> None:
        """Start a companion, or find it running."""
        # Two runs that begin at once need one process of it, not two of which one finds its port taken.
        with cache_lock(companions_folder() / settings.name, self._notify):
            if self._is_running(settings):
                return
            child = start_ready(settings, self._notify, check=self._check)
        self._children.append(child)
        self._notify(f"{settings.title} is ready")

    def _is_running(self, settings: CompanionSettings) -> bool:
        kept = kept_companion(settings.name)
        if kept is not None and kept.is_alive():
            check_usable(kept, settings)
            self._used.append(_Used(f"{settings.title}, which was kept running,", kept.is_alive))
            self._notify(f"{settings.title} is kept running; it is used and left running")
            return True
        if settings.ready_url is None or not answers(settings.ready_url):
            return False
        if not settings.reuse:
            raise EngineError(
                f"a program already answers at {settings.ready_url}; stop it, or set reuse of {settings.title}"
            )
        self._used.append(_Used(f"{settings.title} at {settings.ready_url}", partial(answers, settings.ready_url)))
        self._notify(f"{settings.title} is running already at {settings.ready_url}; it is used and left running")
        return True

    def _check(self) -> None:
        for child in self._children:
            if child.poll() is not None:
                raise failed(child, f"ended with code {child.poll()} before the others were ready", self._notify)

    def watch(self) -> None:
        """Report companions that end, in a separate thread."""
        if self._children or self._used:
            # A flow's log needs the context of the flow run.
            context = contextvars.copy_context()
            self._watcher = threading.Thread(target=context.run, args=(self._watch,), name="companions", daemon=True)
            self._watcher.start()

    def _watch(self) -> None:
        left, used = list(self._children), list(self._used)
        while (left or used) and not self._ended.wait(_WATCH_S):
            for one in [one for one in used if one.is_gone()]:
                used.remove(one)
                self._notify(f"warning: {one.title} does not run any more; to share one, use treadle companions start")
            for child in [one for one in left if one.poll() is not None]:
                left.remove(child)
                self._notify(
                    f"warning: {child.name} ended with code {child.poll()} during the run; its last line: "
                    f"{log_tail(child.log_path, 1)}; log: {child.log_path}"
                )

    def stop(self) -> None:
        """Stop the companions that this block started, the last one first."""
        self._ended.set()
        if self._watcher is not None:
            self._watcher.join()
        with contextlib.ExitStack() as ends:
            for child in self._children:
                ends.callback(child.stop)
