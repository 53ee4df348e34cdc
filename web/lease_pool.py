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

    `a.b.example.org` -> `example.org`, `www.example.co.uk` -> `example.co.uk`. After a wrong guess, several sites share
    their turns.
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
class Turn(Generic[T]):
    """Lease of a resource. The holder may replace `thing` before it returns the lease."""

    site: str
    thing: T
    since: float


class Turns(Generic[T]):
    """Fair lease pool: the site with the fewest leases first, then with the least lease time, then first come.

    Lease times are forgotten once no request waits. `clock` is replaced in tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._idle: list[T] = []
        self._waiting: dict[asyncio.Future[Turn[T]], str] = {}
        self._num_lent: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def add(self, thing: T) -> None:
        """Add a resource to the pool."""
        self._idle.append(thing)
        self._serve()

    async def take(self, site: str) -> Turn[T]:
        """Wait for a lease for a site; return it with `give_back`."""
        given: asyncio.Future[Turn[T]] = asyncio.get_running_loop().create_future()
        self._waiting[given] = site
        self._serve()
        try:
            return await given
        except asyncio.CancelledError:
            if self._waiting.pop(given, None) is None:
                self.give_back(given.result())
            raise

    def give_back(self, turn: Turn[T]) -> None:
        """End a lease."""
        self._num_lent[turn.site] -= 1
        self._seconds[turn.site] += self._clock() - turn.since
        self.add(turn.thing)

    def _serve(self) -> None:
        while self._idle and (waiting := {given: site for given, site in self._waiting.items() if not given.done()}):
            given = min(waiting, key=lambda one: (self._num_lent[waiting[one]], self._seconds[waiting[one]]))
            site = self._waiting.pop(given)
            self._num_lent[site] += 1
            given.set_result(Turn(site, self._idle.pop(), self._clock()))
        if not self._waiting:
            self._seconds.clear()
            self._num_lent = +self._num_lent
