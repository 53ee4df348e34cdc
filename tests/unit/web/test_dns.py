"""Lookups of names whose servers do not answer."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult
from support.servers.own_clock import ForwardClock
from support.servers.web_servers import Site
from support.web.fetching import LOOPBACK, fetching, refusal

from treadle.retriever.client import SearchUnavailable
from treadle.web import dns as names


class SilentServers(AbstractResolver):
    """Names that hold `slow` get no answer until `release`; all others, and those then, are this machine."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.release = asyncio.Event()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        self.asked.append(host)
        if "slow" in host:
            await self.release.wait()
        return [
            ResolveResult(
                hostname=host, host="127.0.0.1", port=port, family=socket.AF_INET, proto=0, flags=socket.AI_NUMERICHOST
            )
        ]

    async def close(self) -> None: ...


async def test_silent_name_servers_of_a_site_delay_only_its_own_names() -> None:
    resolver = SilentServers()
    with Site({"/": "x"}) as site:
        async with fetching(allowed=LOOPBACK, resolver=resolver) as fetch:
            slow = [asyncio.create_task(fetch(f"http://n{at}.slow.test:{site.port}/")) for at in range(99)]
            while len(resolver.asked) < names.NUM_LOOKUPS_OF_SITE:
                await asyncio.sleep(0)
            assert (await fetch(f"http://good.test:{site.port}/")).body == b"x"
            assert len(resolver.asked) == names.NUM_LOOKUPS_OF_SITE + 1
            resolver.release.set()
            assert {(await page).body for page in slow} == {b"x"}


async def test_slow_lookup_is_abandoned_and_keeps_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "LOOKUP_S", 0.05)
    monkeypatch.setattr(names, "NUM_LOOKUPS", 2)
    resolver = SilentServers()
    with Site({"/": "x"}) as site:
        async with fetching(allowed=LOOPBACK, resolver=resolver, page_timeout_s=60.0) as fetch:
            for at in range(2):
                refused = await refusal(fetch(f"http://slow{at}.test:{site.port}/"))
                assert (refused.kind, refused.detail) == ("dns", "its name servers did not answer in 0.05 s")
            page = asyncio.create_task(fetch(f"http://good.test:{site.port}/", 120.0))
            await asyncio.sleep(0)
            # Longer than a page's own time, which does not run while it waits behind others.
            ForwardClock(monkeypatch).pass_(61.0)
            with pytest.raises(SearchUnavailable):
                await fetch(f"http://late.test:{site.port}/", 0.1)
            assert not page.done() and resolver.asked == ["slow0.test", "slow1.test"]
            resolver.release.set()
            assert (await page).body == b"x"


async def test_names_of_one_site_wait_within_their_own_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "NUM_LOOKUPS_OF_SITE", 1)
    resolver = SilentServers()
    async with fetching(allowed=LOOPBACK, resolver=resolver, page_timeout_s=0.2) as fetch:
        pages = [refusal(fetch(f"http://n{at}.slow.test/")) for at in range(2)]
        assert [refused.kind for refused in await asyncio.gather(*pages)] == ["timeout"] * 2
        assert resolver.asked == ["n0.slow.test"]


@pytest.mark.parametrize("found", ["nothing", "an error"])
async def test_name_without_an_address_is_unknown(found: str) -> None:
    class Empty(SilentServers):
        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
        ) -> list[ResolveResult]:
            if found == "an error":
                raise socket.gaierror(socket.EAI_AGAIN, "again")
            return []

    async with fetching(resolver=Empty()) as fetch:
        refused = await refusal(fetch("http://no.test/"))
    assert (refused.kind, refused.detail) == ("dns", "the host name is unknown")


_SLOW_MACHINE = """
import asyncio, threading, time
from treadle.web import dns as names
begun = threading.Event()
def never(*_):
    begun.set()
    threading.Event().wait()
real, names._addresses = names._addresses, never
async def main():
    resolver = names.SystemResolver()
    asked = [asyncio.create_task(resolver.resolve(f"slow{at}.test")) for at in range(20)]
    await asyncio.to_thread(begun.wait)
    names._addresses = real
    print((await resolver.resolve("127.0.0.1", 80))[0]["host"])
    await resolver.close()
asyncio.run(main())
print("over")
"""


def test_silent_name_server_delays_neither_other_lookups_nor_exit() -> None:
    done = subprocess.run([sys.executable, "-c", _SLOW_MACHINE], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["127.0.0.1", "over"]
