"""How much is fetched at once: of all hosts together, and of each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager


class Slots:
    """Places for requests under way; those who wait are served in the order in which they came."""

    def __init__(self, num_all: int, num_per_host: int) -> None:
        self._all = asyncio.Semaphore(num_all)
        self._num_per_host = num_per_host
        self._hosts: dict[str, _Host] = {}

    def __len__(self) -> int:
        """Hosts that are asked or waited for."""
        return len(self._hosts)

    @asynccontextmanager
    async def one(self, host: str) -> AsyncIterator[None]:
        """Hold a place for a request of a host."""
        places = self._hosts.setdefault(host, _Host(self._num_per_host))
        places.users += 1
        try:
            # The host's first: who waits for a slow host takes no place from others.
            async with places.free, self._all:
                yield
        finally:
            places.users -= 1
            if not places.users:
                del self._hosts[host]


class _Host:
    def __init__(self, num: int) -> None:
        self.free = asyncio.Semaphore(num)
        self.users = 0


class PageTime:
    """Seconds that one page has. They run only in `running`, so waiting for a place costs none of them.

    Attributes:
        left_s: What is left.
    """

    def __init__(self, limit: asyncio.Timeout, *, seconds: float, deadline: float) -> None:
        self._limit, self._deadline = limit, deadline
        self._seconds = self.left_s = seconds

    @property
    def half_is_left(self) -> bool:
        """Whether another try is worth while."""
        return self.left_s * 2 >= self._seconds

    @contextmanager
    def running(self) -> Iterator[None]:
        """Move the limit to where the page's seconds end, or the deadline if that comes first."""
        clock = asyncio.get_running_loop()
        started = clock.time()
        self._limit.reschedule(min(self._deadline, started + self.left_s))
        try:
            yield
        finally:
            self.left_s -= clock.time() - started
            if not self._limit.expired():
                self._limit.reschedule(self._deadline)
