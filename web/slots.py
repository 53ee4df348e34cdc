"""Limit concurrency in total and per key, and keep the timeout of a page while it waits for slots."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager


class Slots:
    """Concurrency limit in total and per key; waiters are served first come, first served."""

    def __init__(self, num_all: int | None, num_of_each: int) -> None:
        """Set the limits; `num_all` None sets none on the total."""
        self._all = asyncio.Semaphore(num_all) if num_all is not None else None
        self._num_of_each = num_of_each
        self._each: dict[str, _Places] = {}

    def __len__(self) -> int:
        """Return the number of keys with slots in use or waited for."""
        return len(self._each)

    @asynccontextmanager
    async def one(self, key: str) -> AsyncIterator[None]:
        """Hold a slot of a key, such as a host, during the block."""
        release = await self.take(key)
        try:
            yield
        finally:
            release()

    async def take(self, key: str) -> Callable[[], None]:
        """Wait for a slot; return a function that releases it, to be called once."""
        places = self._each.setdefault(key, _Places(self._num_of_each))
        places.users += 1
        try:
            # The slot of the key first: waiting for a slow host must not take a slot of the total.
            await places.free.acquire()
            try:
                if self._all is not None:
                    await self._all.acquire()
            except BaseException:
                places.free.release()
                raise
        except BaseException:
            self._left(key, places)
            raise

        def release() -> None:
            if self._all is not None:
                self._all.release()
            places.free.release()
            self._left(key, places)

        return release

    def _left(self, key: str, places: _Places) -> None:
        places.users -= 1
        if not places.users:
            del self._each[key]


class _Places:
    def __init__(self, num: int) -> None:
        self.free = asyncio.Semaphore(num)
        self.users = 0


class PageTime:
    """Timeout of one page that runs only inside `running`, so that waiting for a slot does not count.

    While it runs, the page has all its remaining seconds, even past the deadline. While it waits, the deadline applies.

    Attributes:
        left_s: Remaining seconds.
        is_over: Whether the limit was reached because no time is left; otherwise it was the deadline.
    """

    def __init__(self, limit: asyncio.Timeout, *, seconds: float, deadline: float) -> None:
        self._limit, self._deadline = limit, deadline
        self._seconds = self.left_s = seconds
        self._since: float | None = None
        self.is_over = False

    @property
    def half_is_left(self) -> bool:
        """Whether enough time is left for another attempt."""
        return self.left_s * 2 >= self._seconds

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the timeout during the block; the limit is the time at which it ends."""
        self._start()
        try:
            yield
        finally:
            self._stop()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Stop the timeout inside `running` while waiting for a slot; the limit is the deadline."""
        self._stop()
        try:
            yield
        finally:
            self._start()

    def _start(self) -> None:
        if not self._limit.expired():
            self._since = _now()
            self._limit.reschedule(self._since + self.left_s)

    def _stop(self) -> None:
        if self._since is None:
            return
        self.left_s -= _now() - self._since
        self._since = None
        if self._limit.expired():
            self.is_over = True
        else:
            self._limit.reschedule(self._deadline)


def _now() -> float:
    return asyncio.get_running_loop().time()
