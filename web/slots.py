"""Limit concurrency in total and per key, and keep the timeout of a page while it waits for slots."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager


class Slots:
    """Concurrency limit in total and per key; waiters are served first come, first served."""

    def __init__(self, num_total: int | None, num_per_key: int) -> None:
        """Set the limits; `num_total` None means no limit on the total."""
        self._total = asyncio.Semaphore(num_total) if num_total is not None else None
        self._num_per_key = num_per_key
        self._by_key: dict[str, _KeySlots] = {}

    def __len__(self) -> int:
        """Return the number of keys with slots in use or waited for."""
        return len(self._by_key)

    async def take(self, key: str) -> Callable[[], None]:
        """Wait for a slot of a key, such as a host; return a function that releases it, to be called once."""
        key_slots = self._by_key.setdefault(key, _KeySlots(self._num_per_key))
        key_slots.users += 1
        with ExitStack() as held:
            held.callback(self._exit_now, key, key_slots)
            # The slot of the key first: waiting for a slow host must not take a slot of the total.
            await key_slots.free.acquire()
            held.callback(key_slots.free.release)
            if self._total is not None:
                await self._total.acquire()
                held.callback(self._total.release)
            return held.pop_all().close

    def _exit_now(self, key: str, key_slots: _KeySlots) -> None:
        key_slots.users -= 1
        if not key_slots.users:
            del self._by_key[key]


class _KeySlots:
    def __init__(self, num: int) -> None:
        self.free = asyncio.Semaphore(num)
        self.users = 0


class PageTime:
    """Timeout of one page that runs only inside `running`, so that waiting for a slot does not count.

    While it runs, the page has all its remaining seconds, even past the deadline. While it waits, the deadline applies.

    Attributes:
        remaining_s: Remaining seconds.
        is_exhausted: Whether the limit was reached because no time is left; otherwise it was the deadline.
    """

    def __init__(self, limit: asyncio.Timeout, *, seconds: float, deadline: float) -> None:
        self._limit, self._deadline = limit, deadline
        self._seconds = self.remaining_s = seconds
        self._since: float | None = None
        self.is_exhausted = False

    @property
    def can_retry(self) -> bool:
        """Whether enough time is left for another attempt."""
        return self.remaining_s * 2 >= self._seconds

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let the timeout run during the block, which then has at most the remaining seconds."""
        self._start()
        try:
            yield
        finally:
            self._stop()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Pause the timeout inside `running` while the block waits for a slot, at most until the deadline."""
        self._stop()
        try:
            yield
        finally:
            self._start()

    def _start(self) -> None:
        if not self._limit.expired():
            self._since = _now()
            self._limit.reschedule(self._since + self.remaining_s)

    def _stop(self) -> None:
        if self._since is None:
            return
        self.remaining_s -= _now() - self._since
        self._since = None
        if self._limit.expired():
            self.is_exhausted = True
        else:
            self._limit.reschedule(self._deadline)


def _now() -> float:
    return asyncio.get_running_loop().time()
