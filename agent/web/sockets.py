"""Sockets of page fetches: made only for addresses that may be connected to, read only while they bring a page.

The guard is asked of each address in the moment in which its socket is made. So what is checked is what is connected
to, whatever a name said before, however a URL spells its host, and wherever a redirect leads.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from aiohttp.abc import ResolveResult

from treadle.agent.web.addresses import AddressRule, BlockedAddress

WIRE_ALLOWANCE_BYTES = 512 * 1024
"""What a server may send beside its page: header, certificates, what frames the body, and what waits to be taken."""

_READ_BYTES = 16 * 1024


@dataclass
class Exchange:
    """One request and its answer.

    Attributes:
        addresses: What was found for the name of its host.
        refused: Addresses that were refused: aiohttp reports only one of the errors of several.
        num_received: Bytes that came, over all its connections.
        num_taken: Bytes of the page among them.
        wasted: Whether it was ended because nearly all that came was something else.
    """

    addresses: list[ResolveResult] = field(default_factory=list)
    refused: list[BlockedAddress] = field(default_factory=list)
    num_received: int = 0
    num_taken: int = 0
    wasted: bool = False


exchange: ContextVar[Exchange] = ContextVar("exchange")
"""The request under way."""


class MeteredSocket(socket.socket):
    """Breaks off where far more comes than a page: a byte in each chunk, or preliminary answers without end.

    Each such byte costs the event loop a hundred times what a byte of a page does.
    """

    exchange: Exchange

    def recv(self, size: int, flags: int = 0) -> bytes:
        """See `socket.recv`; less at once, so that nobody else in the loop waits long."""
        data = super().recv(min(size, _READ_BYTES), flags)
        self._count(len(data))
        return data

    def recv_into(self, buffer: Any, size: int = 0, flags: int = 0) -> int:
        """The same for TLS."""
        num = super().recv_into(buffer, min(size or len(buffer), _READ_BYTES), flags)
        self._count(num)
        return num

    def _count(self, num: int) -> None:
        self.exchange.num_received += num
        if self.exchange.num_received > WIRE_ALLOWANCE_BYTES + 2 * self.exchange.num_taken:
            self.exchange.wasted = True
            raise ConnectionAbortedError("far more came than a page")


class Guard:
    """Makes sockets for aiohttp (`TCPConnector.socket_factory`): only for addresses that the rule allows."""

    def __init__(
        self, rule: AddressRule, make_socket: Callable[[int, int, int], MeteredSocket] = MeteredSocket
    ) -> None:
        self._rule = rule
        self._make_socket = make_socket

    def __call__(self, info: tuple[Any, ...]) -> socket.socket:
        """A socket for a row of `getaddrinfo`. Raises BlockedAddress, and notes it in the exchange."""
        family, kind, protocol, _, address = info
        under_way = exchange.get()
        try:
            self._rule.check(str(address[0]), int(address[1]))
        except BlockedAddress as error:
            under_way.refused.append(error)
            raise
        made = self._make_socket(family, kind, protocol)
        made.exchange = under_way
        return made
