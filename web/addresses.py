"""Check which network addresses may be connected to, based on the IANA registries of special-purpose addresses."""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Iterable

from treadle.web.log_once import warn_once

_log = logging.getLogger(__name__)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

PORTS = frozenset({80, 443, 8080, 8443})
"""Ports that may be connected to on public addresses."""

_REFUSED_V4 = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT; some clouds serve their metadata here
        "127.0.0.0/8",
        "161.26.0.0/16",  # a cloud provider's internal services, on public addresses
        "166.8.0.0/14",  # the same provider's
        "168.63.129.16/32",  # another provider's
        "169.254.0.0/16",  # link-local; metadata of most clouds
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments; metadata of one cloud
        "192.0.2.0/24",
        "192.31.196.0/24",  # AS112 anycast for reverse names of private addresses, like 192.175.48.0/24
        "192.52.193.0/24",  # AMT relays (multicast)
        "192.88.99.0/24",  # 6to4 relay anycast
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
_GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")
"""Global unicast. All other IPv6 addresses are loopback, link-local, unique local, multicast, or embed an IPv4
address."""
_REFUSED_V6 = tuple(
    ipaddress.IPv6Network(text)
    for text in (
        "2001::/23",  # Teredo and other protocols
        "2001:db8::/32",
        "2002::/16",  # 6to4: embeds an IPv4 address
        "2620:4f:8000::/48",  # as 192.175.48.0/24
        "3fff::/20",
    )
)
_ISATAP, _ISATAP_MASK = 0x00005EFE, 0xFDFFFFFF
"""Third 32-bit word of ISATAP addresses, in any network; their last word is an IPv4 address (RFC 5214)."""
_UNASSIGNED = {4: ipaddress.ip_address("192.0.2.1"), 6: ipaddress.ip_address("2001:db8::1")}
"""Documentation addresses, which no machine has."""
_SENSITIVE_NETWORKS = {
    "this machine": "127.0.0.0/8 ::1/128",
    "the metadata of clouds": "169.254.169.254/32 169.254.170.2/32 100.100.100.200/32 "
    "fd00:ec2::254/128 fd20:ce::254/128",
}
"""Networks that cause a warning if they are allowed."""


class BlockedAddress(OSError):
    """Address that may not be connected to; an OSError, so that aiohttp tries the next address of the name."""


class AddressRule:
    """Rule that allows public addresses on the usual ports, plus the configured networks."""

    def __init__(self, allowed: Iterable[Network] = ()) -> None:
        """Allow `allowed` networks at any port; warn if they contain this machine or cloud metadata."""
        self._allowed = tuple(allowed)
        reached = [
            what
            for what, networks in _SENSITIVE_NETWORKS.items()
            if any(_overlap(ipaddress.ip_network(text), other) for text in networks.split() for other in self._allowed)
        ]
        if reached:
            warn_once(_log, f"pages and their redirects can reach {' and '.join(reached)} (allowed_networks)")

    def check(self, address: str, port: int) -> None:
        """Raise BlockedAddress unless the IP address `address` may be connected to at `port`."""
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            raise BlockedAddress(f"{address[:50]!r} is not an address") from None
        if "%" in address:  # an address with a zone: the event loop would resolve it again
            raise BlockedAddress(f"{address[:50]!r} is not a public address")
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        if any(found in network for network in self._allowed):
            return
        if not _is_public(found):
            raise BlockedAddress(f"{found} is not a public address")
        if port not in PORTS:
            raise BlockedAddress(f"port {port} of {found} is not one of {', '.join(map(str, sorted(PORTS)))}")
        if _is_this_machine(found):
            raise BlockedAddress(f"{found} is an address of this machine")


def _is_public(address: Address) -> bool:
    """Return whether an address is public by the lists above and by Python's `is_global`, which varies by version."""
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global and not any(address in network for network in _REFUSED_V4)
    if (int(address) >> 32) & _ISATAP_MASK == _ISATAP:
        return False
    return address.is_global and address in _GLOBAL_V6 and not any(address in network for network in _REFUSED_V6)


def _is_this_machine(address: Address) -> bool:
    """Return whether an address belongs to this machine, whose services may trust local connections."""
    # If the kernel lets sockets bind to foreign addresses, a successful bind shows nothing.
    return _can_be_bound(address) and not _can_be_bound(_UNASSIGNED[address.version])


def _can_be_bound(address: Address) -> bool:
    family = socket.AF_INET if isinstance(address, ipaddress.IPv4Address) else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


def _overlap(left: Network, right: Network) -> bool:
    return left.version == right.version and left.overlaps(right)
