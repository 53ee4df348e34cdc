"""Which addresses may be connected to. The IANA registries of special addresses are the source of what is refused."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

PORTS = frozenset({80, 443, 8080, 8443})
"""Ports of public servers that may be connected to."""

_REFUSED_V4 = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",  # shared behind a carrier's NAT; some clouds keep their metadata here
        "127.0.0.0/8",
        "168.63.129.16/32",  # a cloud's own services, on a public address
        "169.254.0.0/16",  # link-local, metadata of most clouds
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments; metadata of one cloud
        "192.0.2.0/24",
        "192.88.99.0/24",  # relays to 6to4
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
_GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")
"""Everything else is loopback, link-local, unique local, multicast, or an IPv4 address in other clothes."""
_REFUSED_V6 = tuple(
    ipaddress.IPv6Network(text)
    for text in (
        "2001::/23",  # Teredo and other protocols
        "2001:db8::/32",
        "2002::/16",  # 6to4: an IPv4 address in other clothes
        "3fff::/20",
    )
)


class BlockedAddress(OSError):
    """An address that may not be connected to. An OSError, so that the next address of the name is tried."""


class AddressRule:
    """Public addresses on the usual ports, and what is allowed beside them."""

    def __init__(self, allowed: Iterable[Network] = ()) -> None:
        self._allowed = tuple(allowed)

    def check(self, address: str, port: int) -> None:
        """Raise BlockedAddress unless `address`, in figures, may be connected to at `port`."""
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            raise BlockedAddress(f"{address[:50]!r} is not an address") from None
        if "%" in address:  # the event loop would look it up once more
            raise BlockedAddress(f"{address[:50]!r} is not a public address")
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        if any(found in network for network in self._allowed):
            return
        if not _is_public(found):
            raise BlockedAddress(f"{found} is not a public address")
        if port not in PORTS:
            raise BlockedAddress(f"port {port} of {found} is none of {', '.join(map(str, sorted(PORTS)))}")


def _is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """By the lists above and by Python's, which differs between its versions and calls some of them global."""
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global and not any(address in network for network in _REFUSED_V4)
    return address.is_global and address in _GLOBAL_V6 and not any(address in network for network in _REFUSED_V6)
