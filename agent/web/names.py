"""Addresses of names, looked up in threads of their own.

A lookup cannot be broken off: one whose name server is silent holds its thread for half a minute. So a site has few of
them at a time, and they are left behind where they take too long.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import ExitStack, suppress
from functools import partial

from aiohttp.abc import AbstractResolver, ResolveResult

from treadle.agent.web.slots import PageTime, Slots
from treadle.agent.web.sockets import exchange
from treadle.agent.web.turns import is_address, site_of
from treadle.agent.web.types import Unfetchable

MAX_ADDRESSES = 16
"""Addresses of one name that are looked at: each may cost the whole time for a connection."""
NUM_LOOKUPS = 64
"""Under way at once, each in a thread."""
NUM_LOOKUPS_OF_SITE = 4
LOOKUP_S = 8.0
"""Most time for one; resolvers ask again after 5 s, so a single packet may be lost."""


class Lookups:
    """Lookups of names for pages: bounded in number and time, whatever name servers do."""

    def __init__(self, resolver: AbstractResolver) -> None:
        self._resolver = resolver
        self._of_sites = Slots(None, NUM_LOOKUPS_OF_SITE)
        self._all = asyncio.Semaphore(NUM_LOOKUPS)
        self._under_way: set[asyncio.Future[list[ResolveResult]]] = set()

    async def addresses(self, host: str, port: int, time: PageTime) -> list[ResolveResult]:
        """At most `MAX_ADDRESSES` of a host, none of one that is an address itself; to be asked while `time` runs.

        Waiting behind others costs none of the page's time; behind its own site's lookups it does, so that a site whose
        name servers are silent holds up nobody else. Raises Unfetchable where there is no address.
        """
        if is_address(host):
            return []
        with ExitStack() as places:
            places.callback(await self._of_sites.take(site_of(host)))
            with time.waiting():
                await self._all.acquire()
            places.callback(self._all.release)
            lookup = asyncio.ensure_future(self._resolver.resolve(host, port, socket.AF_UNSPEC))
            self._under_way.add(lookup)
            # Its places are free when it is over, which may be long after anybody waits for it.
            lookup.add_done_callback(partial(self._over, places.pop_all()))
        await asyncio.wait([lookup], timeout=LOOKUP_S)
        if not lookup.done():
            raise Unfetchable("dns", f"its name servers did not answer in {LOOKUP_S:g} s")
        if lookup.cancelled() or isinstance(lookup.exception(), OSError) or not lookup.result():
            raise Unfetchable("dns", "the name is not known")
        return lookup.result()[:MAX_ADDRESSES]

    async def close(self) -> None:
        """Wait for none that is under way."""
        for lookup in self._under_way:
            lookup.cancel()
        await self._resolver.close()

    def _over(self, places: ExitStack, lookup: asyncio.Future[list[ResolveResult]]) -> None:
        self._under_way.discard(lookup)
        places.close()
        if not lookup.cancelled():
            lookup.exception()  # Looked at, also where nobody waits.


class SystemNames(AbstractResolver):
    """What the machine's own resolver says, asked anew each time. Neither loop nor process waits for its threads."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Addresses of a host. Raises OSError where there is none."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[ResolveResult]] = loop.create_future()

        def say(found: list[ResolveResult] | Exception) -> None:
            if isinstance(found, Exception) and not answer.done():
                answer.set_exception(found)
            elif not isinstance(found, Exception) and not answer.done():
                answer.set_result(found)

        def look_up() -> None:
            found: list[ResolveResult] | Exception
            try:
                found = _addresses(host, port, family)
            except Exception as error:  # noqa: BLE001 - raised where it is waited for
                found = error
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(say, found)

        threading.Thread(target=look_up, name="names", daemon=True).start()
        return await answer

    async def close(self) -> None:
        """Threads that still wait for an answer are nobody's any more."""


class FoundNames(AbstractResolver):
    """What was found before for the request under way: nothing is looked up once more."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """See `Exchange.addresses`."""
        return exchange.get().addresses

    async def close(self) -> None:
        """Nothing is held."""


def _addresses(host: str, port: int, family: socket.AddressFamily) -> list[ResolveResult]:
    # As bytes: the host is ASCII already, and Python's own IDNA would read it once more.
    found = socket.getaddrinfo(host.encode("ascii"), port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return [
        ResolveResult(hostname=host, host=str(address[0]), port=port, family=kind, proto=0, flags=socket.AI_NUMERICHOST)
        for kind, _, _, _, address in found
    ]
