"""The guard of page fetches, through a real fetcher, with real listeners that must see no connection.

Each refusal has a control: the same without the guard reaches the listener.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import aiohttp.connector
import pytest
from support.servers.certificates import server_context
from support.servers.web_servers import Names, Page, Request, Route, Site, World
from support.web.fetching import LOOPBACK, fetching, refusal
from yarl import URL

from treadle.web import log_once as once
from treadle.web.addresses import AddressRule
from treadle.web.pages import fetch as fetch_module

PUBLIC, PUBLIC_6 = "93.184.215.14", "2606:2800:21f::1"
SPELLINGS = {
    "literal": ("127.0.0.1", "blocked"),
    "name": ("localhost", "blocked"),
    "name in capitals": ("LocalHost", "blocked"),
    "unspecified": ("0.0.0.0", "blocked"),
    "IPv6": ("[::1]", "blocked"),
    "IPv6 in full": ("[0:0:0:0:0:0:0:1]", "blocked"),
    "mapped": ("[::ffff:127.0.0.1]", "blocked"),
    "mapped, in hexadecimal": ("[::ffff:7f00:1]", "blocked"),
    "full width": ("\uff11\uff12\uff17.\uff10.\uff10.\uff11", "blocked"),
    "in circles": ("\u2460\u2461\u2466.0.0.1", "blocked"),
    "other full stops": ("127\u30020\u30020\u30021", "blocked"),
    "name in script letters": ("\u2113ocalhost", "blocked"),
    "decimal": ("2130706433", "invalid_url"),
    "octal": ("017700000001", "invalid_url"),
    "octal parts": ("0177.0.0.01", "invalid_url"),
    "hexadecimal": ("0x7f000001", "invalid_url"),
    "hexadecimal parts": ("0x7F.0.0x0.1", "invalid_url"),
    "short": ("127.1", "invalid_url"),
    "shortest": ("0", "invalid_url"),
    "with a zone": ("[::1%251]", "invalid_url"),
}
SPECIAL = [
    "10.0.0.5",
    "172.16.0.1",
    "192.168.1.1",
    "100.100.100.200",
    "169.254.169.254",
    "168.63.129.16",
    "192.0.0.192",
    "198.18.0.1",
    "224.0.1.1",
    "255.255.255.255",
    "0.0.0.0",
    "127.8.8.8",
    "::",
    "::1",
    "::ffff:a9fe:a9fe",
    "::7f00:1",
    "64:ff9b::7f00:1",
    "2002:7f00:1::",
    "fd00:ec2::254",
    "fe80::1",
    "fec0::1",
    "ff02::1",
]


@pytest.fixture(scope="module")
def private() -> Iterator[tuple[Site, Site]]:
    """Return a listener that is private: on 127.0.0.1, and on ::1 at the same port."""
    four, six = _on_one_port({"/": "secret", "/secret": "secret"})
    with four, six:
        yield four, six


@pytest.fixture(scope="module")
def public() -> Iterator[Site]:
    """Return a public server."""
    with Site({"/": "welcome"}) as site:
        yield site


@pytest.fixture
def unguarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every address may be connected to."""
    monkeypatch.setattr(AddressRule, "check", lambda *_: None)


def _on_one_port(routes: dict[str, Route]) -> tuple[Site, Site]:
    while True:
        four = Site(routes)
        try:
            return four, Site(routes, host="::1", port=four.port)
        except OSError:  # the port is in use there
            four.close()


def _seen(private: tuple[Site, Site]) -> int:
    return private[0].connections() + private[1].connections()


def _url(address: str, path: str = "/secret") -> str:
    return f"http://[{address}]{path}" if ":" in address else f"http://{address}{path}"


def _world(public: Site, private: tuple[Site, Site], *addresses: str) -> World:
    """Return the public site on port 80 of its address, the private ones on 80 of all others that are named."""
    servers = {(PUBLIC, 80): public.port}
    # An IPv4 address in a URL is connected to as such, also if it is written as an IPv6 address.
    mapped = [str(four) for one in addresses if ":" in one and (four := ipaddress.IPv6Address(one).ipv4_mapped)]
    return World(servers | {(address, 80): private[":" in address].port for address in (*addresses, *mapped)})


# Spellings of this machine, on real sockets.


@pytest.mark.parametrize("host", [host for host, _ in SPELLINGS.values()], ids=list(SPELLINGS))
def test_without_a_guard_each_spelling_reaches_this_machine(host: str, private: tuple[Site, Site]) -> None:
    before = _seen(private)
    shown = host.strip("[]") if host.startswith("[") else urlsplit(f"http://{host}/").hostname
    with socket.create_connection((unquote(shown or ""), private[0].port), timeout=60):
        assert _seen(private) == before + 1


@pytest.mark.parametrize(("host", "kind"), SPELLINGS.values(), ids=list(SPELLINGS))
async def test_no_spelling_of_this_machine_is_connected_to(host: str, kind: str, private: tuple[Site, Site]) -> None:
    before = _seen(private)
    async with fetching() as fetch:
        assert (await refusal(fetch(f"http://{host}:{private[0].port}/secret"))).kind == kind
    assert _seen(private) == before


@pytest.mark.parametrize("host", [host for host, _ in SPELLINGS.values()], ids=list(SPELLINGS))
async def test_guard_alone_blocks_addresses_that_pass_the_url_rule(
    host: str, private: tuple[Site, Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_module, "checked_url", lambda text: URL(text))
    before = _seen(private)
    async with fetching() as fetch:
        assert (await refusal(fetch(f"http://{host}:{private[0].port}/secret"))).kind in ("blocked", "invalid_url")
    assert _seen(private) == before


@pytest.mark.parametrize("spelling", [name for name, (_, kind) in SPELLINGS.items() if kind == "blocked"])
async def test_allowed_network_is_connected_to(spelling: str, private: tuple[Site, Site]) -> None:
    before, url = _seen(private), f"http://{SPELLINGS[spelling][0]}:{private[0].port}/secret"
    async with fetching(allowed=[*LOOPBACK, "0.0.0.0/32"]) as fetch:
        assert (await fetch(url)).body == b"secret"
    assert _seen(private) == before + 1


# Addresses of every kind, in a world where each of them has a server.


@pytest.mark.parametrize("address", SPECIAL)
@pytest.mark.parametrize("way", ["literal", "name", "redirect"])
async def test_no_special_address_is_connected_to(
    address: str, way: str, public: Site, private: tuple[Site, Site]
) -> None:
    before, world = _seen(private), _world(public, private, address)
    async with fetching(make_socket=world.make_socket, resolver=_names(address)) as fetch:
        assert (await refusal(fetch(_way_to(address, way, public)))).kind == "blocked"
    assert _seen(private) == before
    assert world.connected == ([(PUBLIC, 80)] if way == "redirect" else [])


@pytest.mark.parametrize("address", SPECIAL)
@pytest.mark.parametrize("way", ["literal", "name", "redirect"])
@pytest.mark.usefixtures("unguarded")
async def test_without_the_guard_each_special_address_is_reached(
    address: str, way: str, public: Site, private: tuple[Site, Site]
) -> None:
    before, world = _seen(private), _world(public, private, address)
    async with fetching(make_socket=world.make_socket, resolver=_names(address)) as fetch:
        assert (await fetch(_way_to(address, way, public))).body == b"secret"
    assert _seen(private) == before + 1


def _names(address: str) -> Names:
    return Names({"inner.example": [[address]], "public.example": [[PUBLIC]]})


def _way_to(address: str, way: str, public: Site) -> str:
    if way == "literal":
        return _url(address)
    if way == "name":
        return "http://inner.example/secret"
    public.routes["/away"] = Page(status=302, headers={"Location": _url(address)})
    return "http://public.example/away"


@pytest.mark.parametrize("port", [22, 25, 6379, 8081])
async def test_public_address_is_connected_to_only_on_web_ports(port: int, public: Site) -> None:
    world = World({(PUBLIC, number): public.port for number in (80, 443, 8080, 8443, port)})
    async with fetching(make_socket=world.make_socket, resolver=_names(PUBLIC)) as fetch:
        assert "port" in (await refusal(fetch(f"http://public.example:{port}/"))).detail
        assert world.connected == []
        for usual in (80, 443, 8080, 8443):
            assert (await fetch(f"http://public.example:{usual}/")).body == b"welcome"


# Names with several addresses, and names that say one thing and then another.


@pytest.mark.parametrize(
    "addresses",
    [
        [PUBLIC, "127.0.0.1"],
        ["127.0.0.1", PUBLIC],
        ["::1", PUBLIC],
        [PUBLIC, "::1", "10.0.0.5"],
        ["fd00::1", "10.0.0.5", PUBLIC],
    ],
)
async def test_only_the_public_one_of_several_addresses_is_connected_to(
    addresses: list[str], public: Site, private: tuple[Site, Site]
) -> None:
    before, world = _seen(private), _world(public, private, *(set(addresses) - {PUBLIC}))
    names = Names({"both.example": [addresses]})
    async with fetching(make_socket=world.make_socket, resolver=names) as fetch:
        assert (await fetch("http://both.example/")).body == b"welcome"
    assert world.connected == [(PUBLIC, 80)] and _seen(private) == before


async def test_public_ipv6_address_is_connected_to(private: tuple[Site, Site]) -> None:
    before, names = _seen(private), Names({"new.example": [[PUBLIC_6, "::1"], ["::1", PUBLIC_6]]})
    with Site({"/": "welcome"}, host="::1") as public:
        world = World({(PUBLIC_6, 80): public.port, ("::1", 80): private[1].port})
        async with fetching(make_socket=world.make_socket, resolver=names) as fetch:
            for url in ("http://new.example/", "http://new.example/", f"http://[{PUBLIC_6}]/"):
                assert (await fetch(url)).body == b"welcome"
    assert world.connected == [(PUBLIC_6, 80)] * 3 and _seen(private) == before


@pytest.mark.parametrize("addresses", [[PUBLIC, "10.0.0.5"], ["10.0.0.5", PUBLIC], ["::1", PUBLIC]])
async def test_unreachable_public_address_does_not_fall_back_to_a_private_one(
    addresses: list[str], public: Site, private: tuple[Site, Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, names = _seen(private), Names({"both.example": [addresses]})
    world = _world(public, private, "10.0.0.5", "::1")
    del world.servers[(PUBLIC, 80)]
    async with fetching(make_socket=world.make_socket, resolver=names) as fetch:
        assert (await refusal(fetch("http://both.example/"))).kind == "blocked"
        assert set(world.connected) <= {(PUBLIC, 80)} and _seen(private) == before
        monkeypatch.setattr(AddressRule, "check", lambda *_: None)
        assert (await fetch("http://both.example/")).body == b"secret"


async def test_name_that_becomes_private_is_resolved_and_checked_again(
    public: Site, private: tuple[Site, Site]
) -> None:
    before, world = _seen(private), _world(public, private, "127.0.0.1")
    names = Names({"twice.example": [[PUBLIC], ["127.0.0.1"]]})
    async with fetching(make_socket=world.make_socket, resolver=names) as fetch:
        assert (await fetch("http://twice.example/")).body == b"welcome"
        assert names.asked == ["twice.example"], "a second question could be answered otherwise than the one checked"
        assert (await refusal(fetch("http://twice.example/"))).kind == "blocked"
    assert world.connected == [(PUBLIC, 80)] and _seen(private) == before


async def test_name_that_becomes_private_during_a_page_is_checked_again(
    public: Site, private: tuple[Site, Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, world = _seen(private), _world(public, private, "127.0.0.1")
    public.routes["/turn"] = Page(status=302, headers={"Location": "/secret"})
    answers = {"twice.example": [[PUBLIC], ["127.0.0.1"]]}
    async with fetching(make_socket=world.make_socket, resolver=Names(answers)) as fetch:
        assert (await refusal(fetch("http://twice.example/turn"))).kind == "blocked"
    assert world.connected == [(PUBLIC, 80)] and _seen(private) == before
    monkeypatch.setattr(AddressRule, "check", lambda *_: None)
    async with fetching(make_socket=world.make_socket, resolver=Names(answers)) as fetch:
        assert (await fetch("http://twice.example/turn")).body == b"secret"


async def test_only_the_first_addresses_of_a_name_are_tried(public: Site) -> None:
    world = World({(PUBLIC, 80): public.port})
    many = Names({"many.example": [[f"93.184.0.{last}" for last in range(200)] + [PUBLIC]], "none.example": [[]]})
    async with fetching(make_socket=world.make_socket, resolver=many, fetch={"attempts": 1}) as fetch:
        assert (await refusal(fetch("http://many.example/"))).kind == "connect"
        assert len({address for address, _ in world.connected}) == 16
        assert (await refusal(fetch("http://none.example/"))).kind == "dns"
        assert (await refusal(fetch("http://unknown.example/"))).kind == "dns"


# Redirects.


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirect_to_this_machine_is_not_followed(
    status: int, public: Site, private: tuple[Site, Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, world = _seen(private), _world(public, private, "127.0.0.1")
    public.routes["/away"] = Page(status=status, headers={"Location": "http://127.0.0.1/secret"})
    async with fetching(make_socket=world.make_socket, resolver=_names(PUBLIC)) as fetch:
        assert (await refusal(fetch("http://public.example/away"))).kind == "blocked"
        assert world.connected == [(PUBLIC, 80)] and _seen(private) == before
        monkeypatch.setattr(AddressRule, "check", lambda *_: None)
        page = await fetch("http://public.example/away")
    assert (page.final_url, page.body) == ("http://127.0.0.1/secret", b"secret")


@pytest.mark.parametrize("host", [host for host, _ in SPELLINGS.values()], ids=list(SPELLINGS))
async def test_redirect_to_any_spelling_of_this_machine_is_not_followed(host: str, private: tuple[Site, Site]) -> None:
    location = f"http://{host}:{private[0].port}/secret"
    # A header is bytes; UTF-8 is what browsers and aiohttp make of them.
    with Site({"/": Page(status=302, headers={"Location": location.encode().decode("latin-1")})}) as public:
        before, world = _seen(private), World({(PUBLIC, 80): public.port})
        for address in ("127.0.0.1", "::1", "0.0.0.0", "::ffff:7f00:1"):
            world.servers[(address, private[0].port)] = private[":" in address].port
        async with fetching(make_socket=world.make_socket) as fetch:
            assert (await refusal(fetch(f"http://{PUBLIC}/"))).kind in ("blocked", "invalid_url")
    assert world.connected == [(PUBLIC, 80)] and _seen(private) == before


@pytest.mark.parametrize(
    "location",
    [
        "file:///etc/passwd",
        "FILE:///etc/passwd",
        "ftp://public.example/x",
        "gopher://127.0.0.1:6379/_x",
        "data:text/html,x",
        "javascript:alert(1)",
        "http://user:word@public.example/",
        "http://public.example@127.0.0.1/",
        "http://public.example:0/",
        "//user@public.example/",
        "http://][@",
        "//][@",
        "http://127.0.0.1\\@public.example/",
        "x" * 3000,
    ],
)
async def test_redirect_to_a_non_web_address_is_not_followed(location: str, public: Site) -> None:
    world = World({(PUBLIC, 80): public.port})
    public.routes["/away"] = Page(status=302, headers={"Location": location})
    async with fetching(make_socket=world.make_socket, resolver=_names(PUBLIC)) as fetch:
        assert (await refusal(fetch("http://public.example/away"))).kind == "invalid_url"
    assert world.connected == [(PUBLIC, 80)]


async def test_redirects_are_followed_up_to_a_limit() -> None:
    def chain(request: Request) -> Page:
        left = int(request.query["left"])
        return Page("arrived") if not left else Page(status=302, headers={"Location": f"?left={left - 1}"})

    with Site({"/": chain, "/round": Page(status=301, headers={"Location": "/round"})}) as site:
        async with fetching(allowed=LOOPBACK) as fetch:
            page = await fetch(site.url("/?left=5"))
            assert (page.body, page.final_url) == (b"arrived", site.url("/?left=0"))
            assert len(site.requests) == 6
            assert (await refusal(fetch(site.url("/?left=6")))).kind == "redirects"
            assert len(site.requests) == 12
            assert (await refusal(fetch(site.url("/round")))).kind == "redirects"


async def test_requests_reveal_nothing_to_a_site(public: Site) -> None:
    public.routes["/first"] = Page(status=302, headers={"Location": "/second", "Set-Cookie": "a=b; Path=/"})
    public.routes["/second"] = Page("there", headers={"Set-Cookie": "c=d", "Refresh": "0; url=http://127.0.0.1/"})
    world = World({(PUBLIC, 80): public.port})
    async with fetching(make_socket=world.make_socket, resolver=_names(PUBLIC)) as fetch:
        for _ in range(2):
            assert (await fetch("http://public.example/first")).body == b"there"
    for request in public.requests[-4:]:
        assert request.method == "GET" and request.headers["host"] == "public.example"
        assert not {"cookie", "referer", "authorization", "proxy-authorization"} & set(request.headers)
        assert request.headers["accept-encoding"] == "gzip, deflate"
    assert len(world.connected) == 4, "each request has a connection of its own"


# Proxies, passwords, certificates.


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Yield a proxy that this machine's environment names, in all ways."""
    with Site({"/": "through the proxy"}) as proxy:
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.origin)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        yield proxy


async def test_environment_proxy_is_ignored_with_a_warning(
    proxied: Site,
    public: Site,
    private: tuple[Site, Site],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(once, "_logged", set())
    world = _world(public, private, "10.0.0.5")
    async with fetching(make_socket=world.make_socket, resolver=_names(PUBLIC)) as fetch:
        assert (await fetch("http://public.example/")).body == b"welcome"
        assert (await refusal(fetch("http://10.0.0.5/secret"))).kind == "blocked"
    assert proxied.connections() == 0 and world.connected == [(PUBLIC, 80)]
    assert "HTTP_PROXY, HTTPS_PROXY, ALL_PROXY: not used" in caplog.text


def test_default_client_uses_the_environment_proxy(proxied: Site) -> None:
    with pytest.raises(urllib.error.HTTPError):
        # Its own opener: that of the module remembers the proxies of its first use.
        urllib.request.build_opener().open("http://10.0.0.5/secret", timeout=60)
    assert proxied.connections() == 1


async def test_netrc_passwords_are_not_used(public: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "netrc").write_text("machine public.example login me password word\ndefault login me password word\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    world = World({(PUBLIC, 80): public.port})
    async with fetching(make_socket=world.make_socket, resolver=_names(PUBLIC)) as fetch:
        await fetch("http://public.example/")
    assert "authorization" not in public.requests[-1].headers
    async with aiohttp.ClientSession(trust_env=True) as careless, careless.get(public.url()):
        assert "authorization" in public.requests[-1].headers


async def test_invalid_certificate_ends_the_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, trusting = server_context(tmp_path, "127.0.0.1")
    with Site({"/": "encrypted"}, tls=server) as site:
        async with fetching(allowed=LOOPBACK) as fetch:
            assert (await refusal(fetch(site.url()))).kind == "tls"
            assert site.requests == []
            with urllib.request.urlopen(site.url(), context=ssl._create_unverified_context(), timeout=60) as page:
                assert page.read() == b"encrypted"
            monkeypatch.setattr(aiohttp.connector, "_SSL_CONTEXT_VERIFIED", trusting)
            assert (await fetch(site.url())).body == b"encrypted"
            named = site.url().replace("127.0.0.1", "localhost")
            assert (await refusal(fetch(named))).kind == "tls", "valid, but of another name"


async def test_redirect_from_https_to_this_machine_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, private: tuple[Site, Site]
) -> None:
    server, trusting = server_context(tmp_path, "public.example")
    monkeypatch.setattr(aiohttp.connector, "_SSL_CONTEXT_VERIFIED", trusting)
    routes = {"/": Page(status=302, headers={"Location": "http://10.0.0.5/secret"})}
    with Site(routes, tls=server) as site:
        before = _seen(private)
        world = World({(PUBLIC, 443): site.port, ("10.0.0.5", 80): private[0].port})
        async with fetching(make_socket=world.make_socket, resolver=_names(PUBLIC)) as fetch:
            assert (await refusal(fetch("https://public.example/"))).kind == "blocked"
            assert world.connected == [(PUBLIC, 443)] and _seen(private) == before
            monkeypatch.setattr(AddressRule, "check", lambda *_: None)
            assert (await fetch("https://public.example/")).body == b"secret"


# Networks that are allowed in addition to the public ones.


async def test_networks_allowed_in_addition_to_the_public_ones_are_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(once, "_logged", set())
    with caplog.at_level(logging.WARNING):
        async with fetching():
            assert "allowed_networks" not in caplog.text
        async with fetching(allowed=["10.1.0.0/16", "::1/128"]):
            assert "10.1.0.0/16, ::1/128 (allowed_networks)" in caplog.text
        async with fetching(allowed=["10.1.0.0/16", "::1/128"]):
            assert caplog.text.count("fetched from") == caplog.text.count("can reach") == 1


async def test_allowed_network_allows_no_other(public: Site, private: tuple[Site, Site]) -> None:
    world = _world(public, private, "10.1.0.5", "10.2.0.5", "127.0.0.1")
    async with fetching(allowed=["10.1.0.0/16"], make_socket=world.make_socket) as fetch:
        assert (await fetch("http://10.1.0.5/secret")).body == b"secret"
        for address in ("10.2.0.5", "127.0.0.1"):
            assert (await refusal(fetch(_url(address)))).kind == "blocked"
    assert world.connected == [("10.1.0.5", 80)]


async def test_system_resolver_is_used_for_names(private: tuple[Site, Site]) -> None:
    async with fetching(allowed=LOOPBACK) as fetch:
        assert (await fetch(f"http://localhost:{private[0].port}/secret")).body == b"secret"
        assert (await refusal(fetch("http://no-such-name.invalid/"))).kind == "dns"
