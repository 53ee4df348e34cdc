"""Which addresses may be connected to."""

from __future__ import annotations

import ipaddress
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from treadle.web import addresses
from treadle.web import log_once as once
from treadle.web.addresses import PORTS, AddressRule, BlockedAddress
from treadle.web.config import FetchSettings
from treadle.web.sockets import Exchange, MeteredSocket, SocketGuard, exchange

PUBLIC = [
    "1.1.1.1",
    "9.255.255.255",
    "11.0.0.0",
    "93.184.215.14",
    "100.63.255.255",
    "100.128.0.0",
    "128.0.0.0",
    "161.25.255.255",
    "161.27.0.0",
    "166.7.255.255",
    "166.12.0.0",
    "168.63.129.15",
    "169.253.255.255",
    "169.255.0.0",
    "172.15.255.255",
    "172.32.0.0",
    "192.0.1.0",
    "192.167.255.255",
    "192.169.0.0",
    "198.17.255.255",
    "198.20.0.0",
    "223.255.255.255",
    "2001:200::1",
    "2606:4700::1111",
    "2606:4700::100:5efe:7f00:1",
    "2a00:1450:4001::1",
    "::ffff:1.1.1.1",
]
REFUSED = {
    "this machine": ["127.0.0.1", "127.0.0.2", "127.255.255.255", "0.0.0.0", "0.1.2.3", "::1", "::"],
    "private": ["10.0.0.0", "10.255.255.255", "172.16.0.1", "172.31.255.255", "192.168.0.1", "192.168.255.255"],
    "unique local, site-local": ["fc00::1", "fd00::2", "fdff::1", "fec0::1"],
    "link-local": ["169.254.0.1", "169.254.255.255", "fe80::1", "fe80::1%eth0", "febf::1"],
    "with a zone": ["::1%lo", "2606:4700::1%127.0.0.1", "1.1.1.1%127.0.0.1"],
    "metadata of clouds": [
        "169.254.169.254",
        "169.254.170.2",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "fd00:ec2::254",
        "fd20:ce::254",
        "161.26.0.10",
        "166.8.0.1",
        "166.11.255.255",
    ],
    "shared, reserved, for tests and papers": [
        "100.64.0.1",
        "100.127.255.255",
        "192.0.0.8",
        "192.0.2.1",
        "192.31.196.1",
        "192.52.193.1",
        "192.88.99.1",
        "192.175.48.1",
        "2620:4f:8000::1",
        "198.18.0.1",
        "198.19.255.255",
        "198.51.100.7",
        "203.0.113.9",
        "240.0.0.1",
        "2001:db8::1",
        "3fff::1",
        "4000::1",
        "100::1",
    ],
    "of many": ["224.0.0.1", "224.0.1.1", "239.255.255.255", "255.255.255.255", "ff02::1", "ff0e::1"],
    "IPv4 addresses in other clothes": [
        "::ffff:127.0.0.1",
        "::ffff:7f00:1",
        "::FFFF:10.0.0.1",
        "0:0:0:0:0:ffff:a9fe:a9fe",
        "::127.0.0.1",
        "::ffff:0:127.0.0.1",
        "64:ff9b::127.0.0.1",
        "64:ff9b::1.1.1.1",
        "64:ff9b:1::a00:1",
        "2002:7f00:1::",
        "2002:a00:1::1",
        "2001:0:7f00:1::1",
        "2606:4700::5efe:7f00:1",
        "2606:4700::200:5efe:a00:1",
    ],
    "no address in figures": [
        "2130706433",
        "0x7f.1",
        "0177.0.0.1",
        "127.1",
        "localhost",
        "",
        "1.1.1.1 ",
        "1.1.1.1\n",
    ],
}


@pytest.mark.parametrize("address", PUBLIC)
def test_public_address_is_allowed(address: str) -> None:
    for port in (80, 443, 8080, 8443):
        AddressRule().check(address, port)


@pytest.mark.parametrize("address", [address for addresses in REFUSED.values() for address in addresses])
def test_non_public_address_is_refused(address: str) -> None:
    for port in (80, 443, 22, 8443):
        with pytest.raises(BlockedAddress, match="not a"):
            AddressRule().check(address, port)


@pytest.mark.parametrize("port", [0, 1, 21, 22, 23, 25, 53, 81, 444, 2375, 3306, 5432, 6379, 8081, 9200, 11211, 65535])
def test_public_address_is_allowed_only_on_web_ports(port: int) -> None:
    with pytest.raises(BlockedAddress, match=f"port {port} "):
        AddressRule().check("1.1.1.1", port)


def test_allowed_network_is_allowed_on_any_port_and_no_other() -> None:
    rule = AddressRule([ipaddress.ip_network("10.1.0.0/16"), ipaddress.ip_network("fd00:1::/32")])
    for address in ("10.1.0.0", "10.1.255.255", "::ffff:10.1.2.3", "fd00:1::5"):
        rule.check(address, 6379)
    for address in ("10.0.255.255", "10.2.0.0", "::ffff:10.2.0.0", "fd00:2::5", "127.0.0.1", "::10.1.2.3"):
        with pytest.raises(BlockedAddress):
            rule.check(address, 80)
    with pytest.raises(BlockedAddress, match="port"):
        rule.check("1.1.1.1", 6379)


def test_public_looking_address_of_this_machine_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert addresses._is_this_machine(ipaddress.ip_address("127.0.0.5"))
    for address in ("1.1.1.1", "2606:4700::1111", "203.0.113.9"):
        assert not addresses._is_this_machine(ipaddress.ip_address(address))
    monkeypatch.setattr(addresses, "_is_this_machine", lambda address: str(address) == "1.1.1.1")
    for spelled in ("1.1.1.1", "::ffff:1.1.1.1"):
        with pytest.raises(BlockedAddress, match="is an address of this machine"):
            AddressRule().check(spelled, 443)
    AddressRule().check("1.1.1.2", 443)
    AddressRule([ipaddress.ip_network("1.1.1.0/24")]).check("1.1.1.1", 443)


@pytest.mark.parametrize(
    ("networks", "reached"),
    [
        (["127.0.0.0/8"], "this machine"),
        (["::/64"], "this machine"),
        (["169.254.0.0/16"], "the metadata of clouds"),
        (["fd00::/8"], "the metadata of clouds"),
        (["100.64.0.0/10", "127.0.0.1/32"], "this machine and the metadata of clouds"),
        (["10.0.0.0/8"], ""),
        ([], ""),
    ],
)
def test_allowing_this_machine_or_its_credentials_is_logged(
    networks: list[str], reached: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(once, "_logged", set())
    AddressRule(map(ipaddress.ip_network, networks))
    said = [f"pages and their redirects can reach {reached} (allowed_networks)"] if reached else []
    assert caplog.messages == said


@pytest.mark.parametrize(
    ("network", "why"),
    [
        ("0.0.0.0/0", "much of the public internet"),
        ("0.0.0.0/1", "much of the public internet"),
        ("128.0.0.0/1", "much of the public internet"),
        ("10.0.0.0/7", "much of the public internet"),
        ("2000::/3", "much of the public internet"),
        ("2600::/15", "much of the public internet"),
        ("::/0", "IPv4-mapped"),
        ("::/1", "IPv4-mapped"),
        ("::ffff:0:0/96", "IPv4-mapped"),
        ("::ffff:10.0.0.0/104", "IPv4-mapped"),
        ("fe80::%1/64", "has a zone"),
        ("10.0.0.1/8", "host bits"),
        ("garbage", "garbage"),
    ],
)
def test_networks_that_are_too_wide_or_never_match_are_refused(network: str, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        FetchSettings(allowed_networks=(network,))


@pytest.mark.parametrize("network", ["10.0.0.0/8", "127.0.0.0/8", "fd00::/8", "fc00::/7", "2001:db8::/32", "::1/128"])
def test_intranet_networks_can_be_allowed(network: str) -> None:
    assert FetchSettings(allowed_networks=(network,)).allowed_networks == (network,)
    address = str(ipaddress.ip_network(network)[1 if network != "::1/128" else 0])
    AddressRule([ipaddress.ip_network(network)]).check(address, 8000)


_V4 = [
    ipaddress.IPv4Network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "224.0.0.0/3",
    )
]


@given(st.sampled_from(_V4).flatmap(lambda network: st.ip_addresses(network=network)), st.sampled_from(sorted(PORTS)))
def test_address_of_a_special_network_is_refused_in_every_encoding(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int
) -> None:
    number = int(address)
    clothes = [str(address)]
    clothes += [str(ipaddress.IPv6Address(first + number)) for first in (0, 0xFFFF << 32, 0xFFFF << 48, 0x64FF9B << 96)]
    clothes += [str(ipaddress.IPv6Address((0x2002 << 112) + (number << 80) + 1))]
    for spelled in clothes:
        with pytest.raises(BlockedAddress):
            AddressRule().check(spelled, port)


@given(st.ip_addresses())
def test_addresses_that_python_classifies_as_special_are_refused(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    special = address.is_private or address.is_loopback or address.is_link_local or address.is_multicast
    if special or address.is_reserved or address.is_unspecified or not address.is_global:
        mapped = isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped
        if not mapped:
            with pytest.raises(BlockedAddress):
                AddressRule().check(str(address), 80)


@given(st.text(max_size=30), st.integers())
def test_invalid_address_is_refused(text: str, port: int) -> None:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        with pytest.raises(BlockedAddress):
            AddressRule().check(text, port)


def test_refused_address_gets_no_socket_and_the_refusal_is_recorded() -> None:
    made: list[tuple[int, int, int]] = []

    def make_socket(*kind: int) -> MeteredSocket:
        made.append((kind[0], kind[1], kind[2]))
        return MeteredSocket(*kind)

    guard, noted = SocketGuard(AddressRule(), make_socket), exchange.set(Exchange())
    try:
        with pytest.raises(OSError, match=r"^10\.0\.0\.1 is not a public address$"):
            guard((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("10.0.0.1", 80)))
        with pytest.raises(OSError, match="not a public"):
            guard((socket.AF_INET6, socket.SOCK_STREAM, 0, "", ("::1", 80, 0, 0)))
        assert made == [] and [str(error) for error in exchange.get().refused] == [
            "10.0.0.1 is not a public address",
            "::1 is not a public address",
        ]
        guard((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("1.1.1.1", 80))).close()
        assert made == [(socket.AF_INET, socket.SOCK_STREAM, 0)] and len(exchange.get().refused) == 2
    finally:
        exchange.reset(noted)
