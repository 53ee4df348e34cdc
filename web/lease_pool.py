"""Lease scarce resources fairly by site, not first come, first served, so that a slow site delays only itself."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from yarl import URL

T = TypeVar("T")


def site_of(host: str) -> str:
    """Return the registered domain of a host name, guessed from its labels; an IP address is its own site.

    `a.b.example.org` -> `example.org`, `www.example.co.uk` -> `example.co.uk`. After a wrong guess, several sites count
    as one.
    """
    host = host.rstrip(".").lower()
    labels = host.split(".")
    if len(labels) < 3 or is_address(host):
        return host
    is_suffix_of_two = len(labels[-1]) == 2 and len(labels[-2]) <= 3
    return ".".join(labels[-3 if is_suffix_of_two else -2 :])


def site_of_url(url: str) -> str:
    """Return the site of a URL in normal form."""
    return site_of(URL(url).raw_host or "")


def is_address(host: str) -> bool:
    """Return whether a host is an IP address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


@dataclass(eq=False, slots=True)
class Lease(Generic[T]):
    """Lease of a resource. The holder may replace `resource` before it returns the lease."""

    site: str
    resource: T
    since: float


class LeasePool(Generic[T]):
    """Fair lease pool: the site with the fewest leases first, then with the least lease time, then first come.

    Lease times are forgotten once no request waits. `clock` is replaced in tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._idle: list[T] = []
        self._waiting: dict[asyncio.Future[Lease[T]], str] = {}
        self._num_leased: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def add(self, resource: T) -> None:
        """Add a resource to the pool."""
        self._idle.append(resource)
        self._assign()

    async def take(self, site: str) -> Lease[T]:
        """Wait for a lease for a site; return it with `release`."""
        future: asyncio.Future[Lease[T]] = asyncio.get_running_loop().create_future()
        self._waiting[future] = site
        self._assign()
        try:
            return await future
        except asyncio.CancelledError:
            if self._waiting.pop(future, None) is None:
                self.release(future.result())
            raise

    def release(self, lease: Lease[T]) -> None:
        """End a lease."""
        self._num_leased[lease.site] -= 1
        self._seconds[lease.site] += self._clock() - lease.since
        self.add(lease.resource)

    def _assign(self) -> None:
        while self._idle and (waiting := {future: site for future, site in self._waiting.items() if not future.done()}):
            future = min(waiting, key=lambda one: (self._num_leased[waiting[one]], self._seconds[waiting[one]]))
            site = self._waiting.pop(future)
            self._num_leased[site] += 1
            future.set_result(Lease(site, self._idle.pop(), self._clock()))
        if not self._waiting:
            self._seconds.clear()
            self._num_leased = +self._num_leased
