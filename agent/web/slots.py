"""How much is under way at once: of all together, and of each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager


class Slots:
    """Places for what is under way; those who wait are served in the order in which they came."""

    def __init__(self, num_all: int | None, num_of_each: int) -> None:
        """`num_all`: none means as many as there are places of each."""
        self._all = asyncio.Semaphore(num_all) if num_all is not None else None
        self._num_of_each = num_of_each
        self._each: dict[str, _Places] = {}

    def __len__(self) -> int:
        """Of how many there is something under way, or waited for."""
        return len(self._each)

    @asynccontextmanager
    async def one(self, key: str) -> AsyncIterator[None]:
        """Hold a place of a host, or whatever places are counted by."""
        release = await self.take(key)
        try:
            yield
        finally:
            release()

    async def take(self, key: str) -> Callable[[], None]:
        """A place, and what gives it back, which is to be called once."""
        places = self._each.setdefault(key, _Places(self._num_of_each))
        places.users += 1
        try:
            # Its own first: who waits for a slow one takes no place from others.
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
    """Seconds that one page has. They run only in `running`, so waiting for a place costs none of them.

    What runs has all of its seconds, also beyond the deadline; what waits ends with the deadline.

    Attributes:
        left_s: What is left.
        is_over: Whether the limit came because nothing is left. Else it was the deadline.
    """

    def __init__(self, limit: asyncio.Timeout, *, seconds: float, deadline: float) -> None:
        self._limit, self._deadline = limit, deadline
        self._seconds = self.left_s = seconds
        self._since: float | None = None
        self.is_over = False

    @property
    def half_is_left(self) -> bool:
        """Whether another try is worth while."""
        return self.left_s * 2 >= self._seconds

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let them run: the limit is where they end."""
        self._start()
        try:
            yield
        finally:
            self._stop()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Stop them within `running`, for a place that others hold: the limit is the deadline."""
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
