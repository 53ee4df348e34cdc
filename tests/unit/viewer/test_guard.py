"""Which requests the viewer answers, what browsers may do with the answers, and where it listens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient
from support.tables.viewer_run import client, example_run

from treadle.core.errors import ConfigError
from treadle.viewer.server import listen

PAGES = ("/", "/trajectory/1/pools/p2", "/changes/1/pools/p2", "/lineage/1/pools/p2", "/trajectory/1/rollouts@base/r1")


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    yield client(example_run(tmp_path_factory.mktemp("run")))


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8484", "127.0.0.1.evil.example", "localhost.evil.example", "127.0.0.256", "",
             "127.1", "127.0.0.2.evil.example",
             "127.0.0.1@evil.example", "[::2]:8484", "localhost:8484.evil.example"],
)  # fmt: skip
def test_unknown_local_host_name_is_refused(viewer: TestClient, host: str) -> None:
    answer = viewer.get("/", headers={"host": host})
    assert answer.status_code == 421 and "Vorna" not in answer.text


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8484", "localhost:9", "[::1]:8484", "localhost", "LOCALHOST:1", "127.0.0.2:8484"]
)
def test_own_host_names_are_served(viewer: TestClient, host: str) -> None:
    assert viewer.get("/", headers={"host": host}).status_code == 200


def fetched(site: str, mode: str = "navigate", dest: str = "document") -> dict[str, str]:
    """Return the headers that a browser sends with a request."""
    return {"sec-fetch-site": site, "sec-fetch-mode": mode, "sec-fetch-dest": dest}


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/?q=Vorna", fetched("cross-site", "no-cors", "image")),
        ("/", fetched("cross-site", "no-cors", "script")),
        ("/", fetched("same-site", "cors", "empty")),  # Another port of this machine.
        ("/", fetched("cross-site", "navigate", "iframe")),
        ("/?q=Vorna", fetched("cross-site")),
        ("/", {"sec-fetch-site": "cross-site"}),
        ("/", {"origin": "http://evil.example"}),
        ("/", {"origin": "http://127.0.0.1:9999"}),
        ("/", {"origin": "null"}),
    ],
)
def test_requests_from_other_pages_are_refused(viewer: TestClient, path: str, headers: dict[str, str]) -> None:
    answer = viewer.get(path, headers=headers)
    assert answer.status_code == 403 and "Vorna" not in answer.text


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/?q=Vorna", fetched("none")),
        ("/?q=Vorna", fetched("same-origin")),
        ("/static/viewer.js", fetched("same-origin", "no-cors", "script")),
        ("/trajectory/1/pools/p2", fetched("cross-site")),  # A link in a terminal that is a web page.
        ("/", {"origin": "http://127.0.0.1:8484"}),
        ("/", {}),
    ],
)
def test_requests_from_own_pages_links_and_programs_are_served(
    viewer: TestClient, path: str, headers: dict[str, str]
) -> None:
    assert viewer.get(path, headers=headers).status_code == 200


def test_every_response_forbids_features_that_pages_do_not_need(viewer: TestClient) -> None:
    paths = ("/", "/nothing", "/static/viewer.js", "/json/1/pools/p2", "/text/1/pools/p2?place=1", PAGES[1])
    for answer in [viewer.get(path) for path in paths] + [viewer.get("/", headers={"host": "evil.example"})]:
        policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'" and policy["frame-ancestors"] == "'none'"
        assert {policy[name] for name in ("script-src", "style-src", "img-src", "form-action")} == {"'self'"}
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert viewer.post("/").status_code == 405


@pytest.mark.parametrize("path", ["/", "/nothing", "/json/1/pools/p2", "/text/1/pools/p2?place=1", *PAGES[1:]])
def test_run_data_is_not_cached(viewer: TestClient, path: str) -> None:
    assert viewer.get(path).headers["cache-control"] == "no-store"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "127.0.0.1.example.org", "example.org"])
def test_listens_on_no_other_address(host: str) -> None:
    with pytest.raises(ConfigError, match="listens only on loopback addresses"):
        listen(host, 0)


def test_any_loopback_address_is_listened_on_and_served(viewer: TestClient) -> None:
    for host in ("127.0.0.2", "localhost"):
        with listen(host, 0) as listener:
            port = listener.getsockname()[1]
        assert viewer.get("/", headers={"host": f"{host}:{port}"}).status_code == 200


def test_occupied_port_is_reported() -> None:
    with (
        listen("127.0.0.1", 0) as taken,
        pytest.raises(ConfigError, match="port [0-9]+: Address already in use; choose another --port"),
    ):
        listen("127.0.0.1", taken.getsockname()[1])
