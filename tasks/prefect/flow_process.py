"""End the process of a flow run together with its worker, and on SIGTERM as on Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from treadle.core.parent_watch import end_with_parent, outlives_parent
from treadle.tasks.prefect.settings import started_by_worker


def end_with_worker() -> None:
    """End together with the parent process: Prefect leaves flow run processes behind when their worker is killed."""
    if started_by_worker() or not outlives_parent():
        end_with_parent()


@contextmanager
def interrupt_on_sigterm() -> Iterator[None]:
    """Let SIGTERM end the block like Ctrl-C, then pass it on to Prefect's handler.

    Prefect's handler does not raise KeyboardInterrupt: in an event loop, the exception that it raises may end only the
    running task.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ended = False

    def interrupt(signum: int, frame: FrameType | None) -> None:
        nonlocal ended
        ended = True
        raise KeyboardInterrupt

    before: Any = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        if not ended:
            raise
        signal.signal(signal.SIGTERM, before)
        os.kill(os.getpid(), signal.SIGTERM)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
