"""A fair lease pool for scarce resources."""

from __future__ import annotations

import asyncio

import pytest

from treadle.web.lease_pool import Lease, LeasePool, site_of


@pytest.mark.parametrize(
    ("host", "site"),
    [
        ("example.org", "example.org"),
        ("a.b.Example.org.", "example.org"),
        ("www.example.co.uk", "example.co.uk"),
        ("a.b.example.com.cn", "example.com.cn"),
        ("www.example.de", "example.de"),
        ("localhost", "localhost"),
        ("127.0.0.1", "127.0.0.1"),
        ("2001:db8::1", "2001:db8::1"),
    ],
)
def test_hosts_of_one_owner_are_one_site(host: str, site: str) -> None:
    assert site_of(host) == site


class Line:
    """Waiters for one thing, with a clock that the test advances."""

    def __init__(self, num_things: int = 1) -> None:
        self.now = 0.0
        self.turns: LeasePool[int] = LeasePool(lambda: self.now)
        for number in range(num_things):
            self.turns.add(number)
        self.served: list[str] = []
        self.tasks: list[asyncio.Task[Lease[int]]] = []

    async def ask(self, *sites: str) -> None:
        self.tasks += [asyncio.create_task(self._take(site)) for site in sites]
        await asyncio.sleep(0)

    async def _take(self, site: str) -> Lease[int]:
        turn = await self.turns.take(site)
        self.served.append(site)
        return turn

    async def end(self, number: int, after_s: float) -> None:
        self.now += after_s
        self.turns.release(self.tasks[number].result())
        for _ in range(3):
            await asyncio.sleep(0)


async def test_next_turn_goes_to_the_least_served_site_then_the_first_waiter() -> None:
    line = Line()
    await line.ask("evil", "evil", "evil", "a", "b")
    await line.end(0, after_s=5)
    await line.end(3, after_s=0.1)
    await line.ask("a")
    await line.end(4, after_s=0.2)
    await line.end(5, after_s=0.1)
    assert line.served == ["evil", "a", "b", "a", "evil"]


async def test_site_gets_no_second_turn_while_others_wait() -> None:
    line = Line(2)
    await line.ask("evil", "good", "evil", "other", "good")
    await line.end(1, after_s=9)
    assert line.served == ["evil", "good", "other"]


async def test_usage_of_a_site_is_forgotten_without_waiters() -> None:
    line = Line()
    await line.ask("evil")
    await line.end(0, after_s=5)
    assert not line.turns._seconds and not line.turns._num_leased
    await line.ask("a", "evil", "b")
    await line.end(1, after_s=0)
    assert line.served == ["evil", "a", "evil"]


async def test_cancelled_waiter_takes_no_turn_even_if_just_granted() -> None:
    line = Line()
    await line.ask("a", "b", "c")
    line.tasks[1].cancel()
    await line.end(0, after_s=1)
    assert line.served == ["a", "c"]
    await line.ask("d", "e")
    line.turns.release(line.tasks[2].result())
    line.tasks[3].cancel()  # Its turn was granted, but it has not resumed yet.
    for _ in range(4):
        await asyncio.sleep(0)
    assert line.served == ["a", "c", "e"]
