"""Create the sockets of page fetches for allowed addresses only, and limit what they receive.

The guard checks each address when its socket is created. So the address checked is the address connected to, whatever
DNS returned before, however a URL spells its host, and wherever a redirect leads.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from aiohttp.abc import ResolveResult

from treadle.web.addresses import AddressRule, BlockedAddress

WIRE_ALLOWANCE_BYTES = 512 * 1024
"""Bytes that a server may send in addition to its page: headers, certificates, framing, and data not yet consumed."""

_READ_BYTES = 16 * 1024


@dataclass
class Exchange:
    """One request and its response.

    Attributes:
        addresses: Addresses found for the host's name.
        refused: Addresses that were refused; aiohttp reports only one of several errors.
        num_received_bytes: Bytes received over all its connections.
        num_page_bytes: Bytes of the page among them.
        is_aborted: Whether it was aborted because nearly all bytes received were not part of a page.
    """

    addresses: list[ResolveResult] = field(default_factory=list)
    refused: list[BlockedAddress] = field(default_factory=list)
    num_received_bytes: int = 0
    num_page_bytes: int = 0
    is_aborted: bool = False


exchange: ContextVar[Exchange] = ContextVar("exchange")
"""Exchange of the request in progress."""


class MeteredSocket(socket.socket):
    """Socket that aborts if far more than the page is received, such as chunks of one byte or endless 1xx responses.

    Each such byte costs the event loop a hundred times as much as a byte of a page.
    """

    exchange: Exchange

    def recv(self, size: int, flags: int = 0) -> bytes:
        """See `socket.recv`; returns at most 16 KiB at once, so that other tasks of the event loop do not wait long."""
        data = super().recv(min(size, _READ_BYTES), flags)
        self._count(len(data))
        return data

    def recv_into(self, buffer: Any, size: int = 0, flags: int = 0) -> int:
        """See `socket.recv_into`, which TLS uses; limited in the same way."""
        num = super().recv_into(buffer, min(size or len(buffer), _READ_BYTES), flags)
        self._count(num)
        return num

    def _count(self, num: int) -> None:
        self.exchange.num_received_bytes += num
        if self.exchange.num_received_bytes > WIRE_ALLOWANCE_BYTES + 2 * self.exchange.num_page_bytes:
            self.exchange.is_aborted = True
            raise ConnectionAbortedError("far more bytes were received than a page")


class SocketGuard:
    """Socket factory for aiohttp (`TCPConnector.socket_factory`) that creates sockets only for allowed addresses."""

    def __init__(
        self, rule: AddressRule, make_socket: Callable[[int, int, int], MeteredSocket] = MeteredSocket
    ) -> None:
        self._rule = rule
        self._make_socket = make_socket

    def __call__(self, info: tuple[Any, ...]) -> socket.socket:
        """Create a socket for a row of `getaddrinfo`. Raises BlockedAddress, and notes it in the exchange."""
        family, kind, protocol, _, address = info
        current = exchange.get()
        try:
            self._rule.check(str(address[0]), int(address[1]))
        except BlockedAddress as error:
            current.refused.append(error)
            raise
        new_socket = self._make_socket(family, kind, protocol)
        new_socket.exchange = current
        return new_socket
