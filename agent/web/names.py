"""Addresses of names, looked up in threads of their own: a slow name server holds up nothing else of the process."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor

from aiohttp.abc import AbstractResolver, ResolveResult

MAX_ADDRESSES = 16
"""Addresses of one name that are looked at: each may cost the whole time for a connection."""

_NUM_THREADS = 16


class SystemNames(AbstractResolver):
    """What the machine's own resolver says, asked anew each time."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="names")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Addresses of a host. Raises OSError where there is none."""
        found = await asyncio.get_running_loop().run_in_executor(self._threads, _addresses, host, port, family)
        return [
            ResolveResult(hostname=host, host=address, port=port, family=kind, proto=0, flags=socket.AI_NUMERICHOST)
            for kind, address in found
        ]

    async def close(self) -> None:
        """Let go of the threads; one that still waits for an answer ends with it."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _addresses(host: str, port: int, family: socket.AddressFamily) -> list[tuple[socket.AddressFamily, str]]:
    # As bytes: the host is ASCII already, and Python's own IDNA would read it once more.
    found = socket.getaddrinfo(host.encode("ascii"), port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return [(kind, str(address[0])) for kind, _, _, _, address in found]


class FewAddresses(AbstractResolver):
    """The first addresses that another resolver says."""

    def __init__(self, inner: AbstractResolver) -> None:
        self._inner = inner

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """At most `MAX_ADDRESSES`. Raises OSError where there is none."""
        found = (await self._inner.resolve(host, port, family))[:MAX_ADDRESSES]
        if not found:
            raise OSError("the name has no address")
        return found

    async def close(self) -> None:
        """Close the other one."""
        await self._inner.close()
