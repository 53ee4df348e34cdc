"""Pages that models wrote, drawn in a real Chromium in its sandbox: equal bytes, no way out, crashes, many pages."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from treadle.agent.browser.page import StandIn
from treadle.agent.browser.renderer import PageNotDrawn, PageRenderer
from treadle.agent.browser.settings import BrowserSettings
from treadle.core.errors import SandboxError
from treadle.environments.planning.tools.pictures import read_picture

GREEN = StandIn(b"document.body.style.background = 'green'", "text/javascript")


def stand_in(url: str) -> StandIn | None:
    return GREEN if url == "https://known.example/green.js" else None


def page(body: str, number: int = 0) -> str:
    return f"<html><body><!-- {number} -->{body}</body></html>"


@contextlib.asynccontextmanager
async def drawing(**keys: object) -> AsyncIterator[PageRenderer]:
    async with PageRenderer(BrowserSettings(**keys), stand_in) as renderer:  # type: ignore[arg-type]
        yield renderer


@pytest.fixture
def listener() -> Iterator[tuple[str, list[str]]]:
    """Yield the address of a server of this machine, and the paths that it was asked for."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Access-Control-Allow-Origin", "*")
            self.end_headers()
            self.wfile.write(b"document.body.style.background = 'red'")

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()


async def test_same_page_gives_the_same_bytes_in_two_browsers() -> None:
    moving = (
        "<style>div{width:99px;height:99px;background:teal;animation:a 1s infinite}@keyframes a{to{width:9px}}</style>"
        "<div></div><script>document.body.append(Math.random() + ' ' + new Date() + ' ' + Date.now());"
        "setTimeout(() => document.body.append(' later'), 900);"
        "document.body.append(performance.now() + ' ' + performance.timeOrigin + ' ' + document.lastModified);"
        "requestAnimationFrame(time => document.body.append(time))</script>"
    )
    pages = [page(moving + "<p>word " * number, number) for number in range(6)]
    drawn = []
    for _ in range(2):
        async with drawing() as renderer:
            drawn.append(await asyncio.gather(*map(renderer.draw, pages)))
    assert drawn[0] == drawn[1] and len(set(drawn[0])) == len(pages)


async def test_picture_is_as_wide_as_the_window_and_as_high_as_its_page() -> None:
    async with drawing(max_height=2000) as renderer:
        sizes = []
        for height in (10, 1500, 5000):
            picture = read_picture(await renderer.draw(page(f"<div style='height:{height}px;margin:0'></div>")))
            sizes.append((picture.width, picture.height))
    assert sizes[0] == (1280, 800) and sizes[2] == (1280, 2000)
    assert sizes[1][0] == 1280 and 1500 <= sizes[1][1] < 1600


async def test_page_gets_nothing_from_the_network_or_from_files(listener: tuple[str, list[str]]) -> None:
    url, asked = listener
    ways = [
        f"<script src='{url}/script.js'></script>",
        f"<script>fetch('{url}/fetched').then(() => {{ document.body.style.background = 'red' }}, () => 0)</script>",
        f"<img src='{url}/picture' onload=\"document.body.style.background = 'red'\">",
        f"<script>new WebSocket('{url.replace('http', 'ws')}/socket').onopen = () => "
        "{ document.body.style.background = 'red' }</script>",
        f"<script>location = '{url}/elsewhere'</script>",
        f"<script>open('{url}/window')</script>",
        "<script>fetch('http://169.254.169.254/latest/meta-data/').then(() => "
        "{ document.body.style.background = 'red' }, () => 0)</script>",
        "<script>fetch('file:///etc/passwd').then(() => { document.body.style.background = 'red' }, () => 0)</script>",
        "<img src='file:///usr/share/pixmaps/debian-logo.png' onload=\"document.body.style.background='red'\">",
        "<style>@import url(file:///usr/share/x.css); body { background: url(file:///usr/share/x.png) }</style>",
        f"<style>body {{ background: url('{url}/background') }}</style><link rel=prefetch href='{url}/prefetch'>",
        f"<meta http-equiv=refresh content='0;url={url}/refresh'>",
        "<script>navigator.serviceWorker?.register('/w.js'); alert(1); confirm(2); prompt(3); print()</script>",
        f"<script>(function again() {{ fetch('{url}/again').catch(again) }})()</script>",
        "<script>new Worker(URL.createObjectURL(new Blob(['for (;;) {}'])))</script>",
        "<script>setInterval(() => location.reload(), 0)</script>",
    ]
    async with drawing() as renderer:
        plain = await renderer.draw(page(""))
        for way in ways:
            assert await renderer.draw(page(f"<div style='display:none'>{way}</div>")) == plain, way
        framed = await renderer.draw(page("<iframe src='file:///etc/passwd'></iframe>"))
        assert framed == await renderer.draw(page("<iframe src='http://unknown.example/'></iframe>"))
        assert await renderer.draw(page("<script src='https://known.example/green.js'></script>")) != plain
        assert renderer.num_started == 1
    assert asked == []


async def test_page_that_hangs_is_given_up_after_two_browsers_and_others_go_on() -> None:
    async with drawing(page_time_s=4) as renderer:
        with pytest.raises(PageNotDrawn, match="was not drawn in 2 browsers: it did not finish within 4 s"):
            await renderer.draw(page("<script>for (;;) {}</script>"))
        assert (await renderer.draw(page("ok"))).startswith(b"\x89PNG")


async def test_killed_browser_is_replaced_and_its_pages_are_drawn_again() -> None:
    async with drawing() as renderer:
        before = await renderer.draw(page("same"))
        assert renderer._current is not None
        with contextlib.suppress(Exception):
            await renderer._current.browser.devtools.call("Browser.crash")
        drawn = await asyncio.gather(*(renderer.draw(page("same", number)) for number in range(3)))
        assert set(drawn) == {before}
        # A page that was in the lost browser gets one of its own; others share the next one.
        assert 2 <= renderer.num_started <= 4


def num_processes(name: str) -> int:
    found = 0
    for one in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            found += name.encode() in Path(f"/proc/{one}/cmdline").read_bytes()
    return found


async def test_hundred_pages_leave_nothing_in_the_browser() -> None:
    async with drawing(pages_per_browser=1000) as renderer:
        await renderer.draw(page("first"))
        assert renderer._current is not None
        devtools = renderer._current.browser.devtools
        before = len((await devtools.call("Target.getTargets"))["targetInfos"])
        processes = num_processes("--type=renderer")
        await asyncio.gather(*(renderer.draw(page(f"number {number}")) for number in range(100)))
        assert len((await devtools.call("Target.getTargets"))["targetInfos"]) == before
        assert (await devtools.call("Target.getBrowserContexts"))["browserContextIds"] == []
        assert num_processes("--type=renderer") <= processes + 4
        assert renderer.num_started == 1 and not renderer._current.num_open


async def test_missing_browser_is_named_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match=r"environment\.browser\.program: .* is no program"):
        async with drawing(program=tmp_path / "none"):
            pass
