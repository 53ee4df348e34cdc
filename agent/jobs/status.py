"""Report the state of running jobs at fixed intervals, so that a stall is visible although no job finishes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Sequence

from treadle.core.llm.types import EndpointState
from treadle.core.runs.records import ModelServerStatus

_log = logging.getLogger(__name__)

STATUS_INTERVAL_S = 5.0
_RATE_WINDOW_S = 60.0


class Rate:
    """Rate of a growing count over the last minute."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def per_s(self, now_s: float, count: int) -> float:
        """Return the growth per second since a minute ago, or since the first call; 0 at first."""
        self._seen.append((now_s, count))
        while len(self._seen) > 2 and self._seen[1][0] <= now_s - _RATE_WINDOW_S:
            self._seen.popleft()
        since_s, before = self._seen[0]
        return (count - before) / (now_s - since_s) if now_s > since_s else 0.0


class ServerRates:
    """Rates of the endpoints of all models."""

    def __init__(self) -> None:
        self._rates: defaultdict[tuple[str, str], Rate] = defaultdict(Rate)

    def statuses(self, states: Sequence[tuple[str, EndpointState]], now_s: float) -> list[ModelServerStatus]:
        """Return the status of each endpoint from its model's name and its state."""
        return [
            ModelServerStatus(
                model=model,
                url=state.url,
                health=state.health,
                in_flight=state.in_flight,
                queued=state.queued,
                answered=state.answered,
                tokens_per_s=round(self._rates[model, state.url].per_s(now_s, state.sampled_tokens), 1),
                errors=state.errors,
                last_error=state.last_error,
            )
            for model, state in states
        ]


@contextlib.asynccontextmanager
async def reporting(report: Callable[[], None]) -> AsyncIterator[None]:
    """Call `report` at the start of the block, every `STATUS_INTERVAL_S` seconds, and at its end.

    Errors that `report` raises end neither the block nor the reports; the first one is logged.
    """
    has_failed = False

    def try_to_report() -> None:
        nonlocal has_failed
        try:
            report()
        except Exception as error:  # noqa: BLE001 - the jobs do not depend on what is shown of them
            if not has_failed:
                _log.warning("the state of the jobs cannot be shown: %s: %s", type(error).__name__, error)
            has_failed = True

    async def repeat() -> None:
        while True:
            try_to_report()
            await asyncio.sleep(STATUS_INTERVAL_S)

    task = asyncio.create_task(repeat())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        try_to_report()
