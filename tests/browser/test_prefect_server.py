"""`treadle prefect up` against web pages that try to reach its server from the user's own browser."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page
from support.runs.command_line import TREADLE
from support.runs.processes import end_family, until
from support.servers.ports import free_port
from support.servers.prefect_api import credentials

_PAGES = {
    # What a page can send without asking the server first, with the content type that Prefect takes for JSON or none.
    "simple": """
        for (const type of ["text/plain", "application/x-www-form-urlencoded", ""])
            for (const path of ["flows/", "deployments/", "variables/", "block_documents/", "automations/"])
                await fetch(`${API}/${path}`, {method: "POST", mode: "no-cors", credentials: "include",
                    body: new Blob([BODY], {type})}).catch(() => 0);
        return "sent";""",
    "cross-origin": """
        const answer = await fetch(`${API}/flows/`, {method: "POST", body: BODY,
            headers: {"Content-Type": "application/json"}}).catch(() => null);
        return answer === null ? "refused" : String(answer.status);""",
    "reading": """
        const answer = await fetch(`${API}/flows/filter`, {method: "POST", body: "{}",
            headers: {"Content-Type": "application/json"}}).catch(() => null);
        return answer === null ? "refused" : await answer.text();""",
    "health": """
        const answer = await fetch(`${API}/health`).catch(() => null);
        return answer === null ? "refused" : await answer.text();""",
    "socket": """
        return await new Promise(done => {
            const socket = new WebSocket(API.replace("http", "ws") + "/events/out", ["prefect"]);
            socket.onopen = () => done("opened");
            socket.onerror = () => done("refused");
        });""",
    "form": """
        const form = document.createElement("form");
        form.method = "POST"; form.enctype = "text/plain"; form.action = `${API}/flows/`;
        form.innerHTML = `<input name='{"name": "by-a-page", "x": "' value='"}'>`;
        const frame = document.createElement("iframe");
        frame.name = form.target = "target";
        document.body.append(frame, form);
        const loaded = new Promise(done => { frame.onload = done; });
        form.submit();
        await loaded;
        return "sent";""",
}
_BODY = '{"name": "by-a-page"}'


@dataclass(frozen=True)
class Server:
    """A started `treadle prefect up` and a foreign site next to it."""

    url: str
    password: str
    site: str

    def api(self) -> httpx.Client:
        """Return a client with the password."""
        return httpx.Client(base_url=f"{self.url}/api", auth=credentials(self.password), timeout=30)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder, port = tmp_path_factory.mktemp("up"), free_port()
    hidden = ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "TREADLE_ROOT")
    env = {name: value for name, value in os.environ.items() if name not in hidden} | {"PREFECT_HOME": f"{folder}/home"}
    log = folder / "up.log"
    with log.open("w") as output:
        argv = [TREADLE, "prefect", "up", "--port", str(port)]
        process = subprocess.Popen(argv, cwd=folder, env=env, stdout=output, stderr=output, text=True)
    try:
        until(lambda: "Ctrl-C" in log.read_text() or process.poll() is not None, "Prefect is up", 300.0, 0.1)
        assert process.poll() is None, log.read_text()
        with _foreign_site() as site:
            yield Server(f"http://127.0.0.1:{port}", (folder / "home/treadle.password").read_text(), site)
    finally:
        end_family(process)


class _Page(BaseHTTPRequestHandler):
    """A page that does nothing until the test runs a script in it."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>elsewhere</title><body></body>")

    def log_message(self, *_: object) -> None:
        pass


class _foreign_site:
    """A web site on another port of this machine; gives its address."""

    def __enter__(self) -> str:
        self._site = ThreadingHTTPServer(("127.0.0.1", 0), _Page)
        threading.Thread(target=self._site.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self._site.server_address[1]}/"

    def __exit__(self, *_: Any) -> None:
        self._site.shutdown()
        self._site.server_close()


@pytest.fixture(scope="module")
def foreign_page(browser: Browser, server: Server) -> Iterator[Page]:
    """Yield a page of the other site, in a browser in which the user is logged in to Prefect."""
    context = browser.new_context()
    page = context.new_page()
    _log_in(page, server)
    page.goto(server.site)
    yield page
    context.close()


def _log_in(page: Page, server: Server) -> None:
    page.goto(server.url)
    page.locator("input[type=password]").fill(server.password)
    with page.expect_response(lambda answer: "/api/" in answer.url and answer.status == 200):
        page.keyboard.press("Enter")


def _run(page: Page, api: str, script: str) -> str:
    return str(page.evaluate(f"async ([API, BODY]) => {{ {script} }}", [api, _BODY]))


@pytest.mark.parametrize("name", _PAGES)
def test_cross_origin_pages_cannot_reach_the_server(foreign_page: Page, server: Server, name: str) -> None:
    assert _run(foreign_page, f"{server.url}/api", _PAGES[name]) in ("sent", "refused")
    with server.api() as api:
        made = [item["name"] for item in api.post("/flows/filter", json={}).json()]
        assert "flywheel" in made and "by-a-page" not in made
        assert not api.post("/variables/filter", json={}).json()


def test_rejects_a_foreign_host_name_resolving_to_loopback(server: Server, browser: Browser) -> None:
    """DNS rebinding: to the browser the attacker's page and the server then are of one origin."""
    port = server.url.rpartition(":")[2]
    rebound = browser.browser_type.launch(
        executable_path=os.environ.get("TREADLE_CHROMIUM") or "/usr/bin/chromium",
        args=["--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP attacker.example 127.0.0.1"],
    )
    try:
        page = rebound.new_page()
        answer = page.goto(f"http://attacker.example:{port}/")
        assert answer is not None and answer.status == 421
        api = f"http://attacker.example:{port}/api"
        assert "answers to loopback addresses" in _run(page, api, _PAGES["health"])
        assert _run(page, api, _PAGES["socket"]) == "refused"
    finally:
        rebound.close()


def test_ui_requires_the_password(browser: Browser, server: Server) -> None:
    context = browser.new_context()
    try:
        stranger = context.new_page()
        stranger.goto(f"{server.url}/deployments")
        stranger.wait_for_url("**/login**")
        _log_in(stranger, server)
        stranger.goto(f"{server.url}/deployments")
        stranger.get_by_text("full-on-gpu").first.wait_for()
    finally:
        context.close()


def test_server_listens_on_one_address_only(server: Server) -> None:
    """A server on all addresses would be reached by 127.0.0.2 as well."""
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url.replace("127.0.0.1", "127.0.0.2"), timeout=30)


def test_api_requires_the_password(server: Server) -> None:
    assert server.password.startswith("treadle:") and len(server.password) > 30
    assert httpx.post(f"{server.url}/api/flows/filter", json={}).status_code == 401
    wrong = httpx.post(f"{server.url}/api/flows/filter", json={}, auth=("treadle", "wrong"))
    assert wrong.status_code == 401
