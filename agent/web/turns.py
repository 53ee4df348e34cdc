"""Turns at what there is little of: not first come, first served, but by site, so that one holds up only itself."""

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
    """The part of a host's name that its owner registered, as far as its letters tell; an address is a site itself.

    `a.b.example.org` -> `example.org`, `www.example.co.uk` -> `example.co.uk`. Where it tells wrong, sites share turns.
    """
    host = host.rstrip(".").lower()
    labels = host.split(".")
    if len(labels) < 3 or is_address(host):
        return host
    is_suffix_of_two = len(labels[-1]) == 2 and len(labels[-2]) <= 3
    return ".".join(labels[-3 if is_suffix_of_two else -2 :])


def site_of_url(url: str) -> str:
    """The site of a URL in normal form."""
    return site_of(URL(url).raw_host or "")


def is_address(host: str) -> bool:
    """Whether a host is no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


@dataclass(eq=False, slots=True)
class Turn(Generic[T]):
    """What is lent. `thing` may be replaced by another one before it is given back."""

    site: str
    thing: T
    since: float


class Turns(Generic[T]):
    """Things that are lent to sites, one to a turn.

    Next is a site that has none, then one that has had them for the least time; among equals who came first. What was
    had is forgotten when nobody waits. `clock` is replaced in tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._idle: list[T] = []
        self._waiting: dict[asyncio.Future[Turn[T]], str] = {}
        self._num_lent: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def add(self, thing: T) -> None:
        """One more to lend."""
        self._idle.append(thing)
        self._serve()

    async def take(self, site: str) -> Turn[T]:
        """One for a site, once it is its turn; `give_back` afterwards."""
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
        """End a turn."""
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
