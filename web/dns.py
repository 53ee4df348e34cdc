"""Look up host names in threads of their own.

A lookup cannot be cancelled: if its name server is silent, it occupies its thread for half a minute. So each site has
few lookups at a time, and a lookup that takes too long is abandoned.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import ExitStack, suppress
from functools import partial

from aiohttp.abc import AbstractResolver, ResolveResult

from treadle.web.lease_pool import is_address, site_of
from treadle.web.slots import PageTime, Slots
from treadle.web.sockets import exchange
from treadle.web.types import Unfetchable

MAX_ADDRESSES = 16
"""Most addresses of one name that are used: each may cost a full connection timeout."""
NUM_LOOKUPS = 64
"""Most lookups in progress at once, each in a thread."""
NUM_LOOKUPS_OF_SITE = 4
LOOKUP_S = 8.0
"""Timeout of one lookup in seconds; resolvers retry after 5 s, so a single packet may be lost."""


class Lookups:
    """Lookups of host names for pages, bounded in number and time."""

    def __init__(self, resolver: AbstractResolver) -> None:
        self._resolver = resolver
        self._site_slots = Slots(None, NUM_LOOKUPS_OF_SITE)
        self._all = asyncio.Semaphore(NUM_LOOKUPS)
        self._in_progress: set[asyncio.Future[list[ResolveResult]]] = set()

    async def addresses(self, host: str, port: int, time: PageTime) -> list[ResolveResult]:
        """Return at most `MAX_ADDRESSES` addresses of a host, or none if the host is an IP address.

        Call it while `time` runs. Waiting for lookups of other sites does not count towards the page's timeout; waiting
        for lookups of its own site does, so that a site with silent name servers delays no other. Raises Unfetchable if
        there is no address.
        """
        if is_address(host):
            return []
        with ExitStack() as slots:
            slots.callback(await self._site_slots.take(site_of(host)))
            with time.waiting():
                await self._all.acquire()
            slots.callback(self._all.release)
            lookup = asyncio.ensure_future(self._resolver.resolve(host, port, socket.AF_UNSPEC))
            self._in_progress.add(lookup)
            # Its slots are released when the lookup ends, which may be long after the timeout.
            lookup.add_done_callback(partial(self._finish, slots.pop_all()))
        await asyncio.wait([lookup], timeout=LOOKUP_S)
        if not lookup.done():
            raise Unfetchable("dns", f"its name servers did not answer in {LOOKUP_S:g} s")
        if lookup.cancelled() or isinstance(lookup.exception(), OSError) or not lookup.result():
            raise Unfetchable("dns", "the host name is unknown")
        return lookup.result()[:MAX_ADDRESSES]

    async def close(self) -> None:
        """Cancel the lookups in progress without waiting for their threads."""
        for lookup in self._in_progress:
            lookup.cancel()
        await self._resolver.close()

    def _finish(self, slots: ExitStack, lookup: asyncio.Future[list[ResolveResult]]) -> None:
        self._in_progress.discard(lookup)
        slots.close()
        if not lookup.cancelled():
            lookup.exception()  # Retrieved, so that asyncio does not log it as never retrieved.


class SystemResolver(AbstractResolver):
    """Resolver of the machine, without a cache. Neither the event loop nor the process waits for its threads."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of a host. Raises OSError if there are none."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[ResolveResult]] = loop.create_future()

        def set_answer(found: list[ResolveResult] | Exception) -> None:
            if isinstance(found, Exception) and not answer.done():
                answer.set_exception(found)
            elif not isinstance(found, Exception) and not answer.done():
                answer.set_result(found)

        def look_up() -> None:
            found: list[ResolveResult] | Exception
            try:
                found = _addresses(host, port, family)
            except Exception as error:  # noqa: BLE001 - raised where the result is awaited
                found = error
            with suppress(RuntimeError):  # the loop was closed in the meantime
                loop.call_soon_threadsafe(set_answer, found)

        threading.Thread(target=look_up, name="names", daemon=True).start()
        return await answer

    async def close(self) -> None:
        """Do nothing; threads that still wait are daemons and end by themselves."""


class ResolvedAddresses(AbstractResolver):
    """Resolver that returns the addresses already found for the current request; nothing is looked up twice."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """See `Exchange.addresses`."""
        return exchange.get().addresses

    async def close(self) -> None:
        """Do nothing."""


def _addresses(host: str, port: int, family: socket.AddressFamily) -> list[ResolveResult]:
    # As bytes: the host is ASCII already, and Python would apply its own IDNA to a str.
    found = socket.getaddrinfo(host.encode("ascii"), port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return [
        ResolveResult(hostname=host, host=str(address[0]), port=port, family=kind, proto=0, flags=socket.AI_NUMERICHOST)
        for kind, _, _, _, address in found
    ]
