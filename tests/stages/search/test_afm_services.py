"""Services of Agent Foundation Models on the retrieval service, over real HTTP on loopback.

Requests are those of the original's clients: `requests` and aiohttp with their fields, keys included.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from support.servers.held_index import HeldIndex
from support.servers.ports import free_port
from support.servers.scripted_server import RecordedRequest, ScriptedServer
from support.servers.served_index import served
from support.servers.web_servers import Page, Request, Site

from treadle.agent.pages.server_config import RetrieverConfig
from treadle.agent.pages.service import PageService
from treadle.core.config import validate

TEXTS = ("red fox", "red dog", "blue fox", "green")
CRAWL = {
    "task": "",
    "web_search_query": "height of the tower",
    "think_content": "I want the height.",
    "summary_type": "page",
    "summary_prompt_type": "webthinker_with_goal",
    "api_url": "http://127.0.0.1:9/v1",
    "api_key": "sk-secret-of-the-client",
    "model": "m",
}
"""What the original's client sends besides `urls`, the last three by older versions."""


class Client:
    """A session and the service's address."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session, self.url = session, url

    async def get(self, path: str) -> int:
        async with self.session.get(self.url + path) as response:
            await response.read()
            return response.status

    async def waiting(self) -> bool:
        """Return whether a query waits for a worker."""
        async with self.session.get(f"{self.url}/metrics") as response:
            return "treadle_retriever_waiting_queries 1.0" in await response.text()

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        headers = {"Content-Type": "application/json", "X-API-KEY": "a|b"}
        async with self.session.post(self.url + path, data=data, headers=headers) as response:
            return response.status, await response.json()


@asynccontextmanager
async def service(index: HeldIndex, folder: Path, config: Mapping[str, Any], **settings: Any) -> AsyncIterator[Client]:
    """Serve an index, and the web by tables of the configuration."""
    cache = {"path": folder / "web.sqlite"}
    read = validate(RetrieverConfig, {"cache": cache, **config}, "a test")
    async with (
        served(index, extension=PageService(read), **settings) as url,
        aiohttp.ClientSession() as session,
    ):
        client = Client(session, url)
        while await client.get("/health") != 200:
            pass
        yield client


@pytest.fixture
def index(tmp_path: Path) -> HeldIndex:
    (tmp_path / "index").mkdir()
    return HeldIndex(tmp_path / "index", TEXTS)


async def test_retrieve_returns_a_list_of_documents_per_query_with_or_without_scores(
    index: HeldIndex, tmp_path: Path
) -> None:
    def document(row: int) -> dict[str, str]:
        return {"id": str(row), "contents": f"Title {row}\n{TEXTS[row]}"}

    for api in ("flashrag", "afm"):
        async with service(index, tmp_path, {}, api=api) as client:
            body = {"queries": ["red fox", " ", "green"], "topk": 2, "return_scores": True}
            assert await client.post("/retrieve", body) == (
                200,
                {
                    "result": [
                        [{"document": document(0), "score": 2.0}, {"document": document(1), "score": 1.0}],
                        [],
                        [{"document": document(3), "score": 1.0}],
                    ]
                },
            )
            for default in ({}, {"topk": None}, {"topk": 3, "return_scores": False}):
                status, answer = await client.post("/retrieve", {"queries": ["red dog blue green"], **default})
                assert status == 200 and len(answer["result"][0]) == 3 and answer["result"][0][0] == document(1)
            assert await client.post("/retrieve", {"queries": []}) == (200, {"result": []})
            for wrong in ({}, {"queries": "red"}, {"queries": ["red"], "topk": 0}, {"queries": ["red"], "topk": 101}):
                assert (await client.post("/retrieve", wrong))[0] == 422


async def test_statuses_of_retrieve_are_those_that_its_client_retries(index: HeldIndex, tmp_path: Path) -> None:
    index.held = True
    async with service(index, tmp_path, {}, num_workers=1, max_waiting=1, cache_mib=0, timeout_s=60) as client:
        first = asyncio.create_task(client.post("/retrieve", {"queries": ["red"]}))
        await asyncio.to_thread(index.began.acquire)
        second = asyncio.create_task(client.post("/retrieve", {"queries": ["fox"]}))
        while not await client.waiting():
            pass
        assert await client.post("/retrieve", {"queries": ["dog"]}) == (
            503,
            {"detail": "Server too busy, please retry later"},
        )
        index.go.release(100)
        assert [status for status, _ in await asyncio.gather(first, second)] == [200, 200]
        index.held = False
        index.failure = RuntimeError("a bug")
        assert (await client.post("/retrieve", {"queries": ["blue"]}))[0] == 500
    index.failure, index.held, index.go = None, True, threading.Semaphore(0)
    async with service(index, tmp_path, {}, timeout_s=0.01) as client:
        assert (await client.post("/retrieve", {"queries": ["red dog"]}))[0] == 504
        index.go.release(100)


async def test_a_body_of_the_other_api_is_refused_with_the_name_of_the_option(index: HeldIndex, tmp_path: Path) -> None:
    async with service(index, tmp_path, {}, api="flashrag") as client:
        status, said = await client.post("/search", {"q": "red", "num": 2})
        assert status == 422 and "--api afm" in said["detail"]
        assert (await client.post("/search", {"query": "red", "q": "red"}))[0] == 200
    async with service(index, tmp_path, {}, api="afm") as client:
        for body in ({"query": "red"}, {"query": "red", "top_n": 2, "return_score": True}):
            status, said = await client.post("/search", body)
            assert status == 422 and "--api flashrag" in said["detail"]
        assert (await client.post("/search", {"query": "red", "q": "red"}))[0] == 200
        assert await client.post("/search", b"{") == (400, {"detail": "Invalid JSON in request body."})
        for wrong in ({}, {"q": 5}, {"q": "red", "num": 0}, []):
            assert (await client.post("/search", wrong))[0] == 422
        assert (await client.post("/search", {"q": " "}))[0] == 400


async def test_search_of_afm_finds_documents_of_the_index_without_a_provider(index: HeldIndex, tmp_path: Path) -> None:
    async with service(index, tmp_path, {}, api="afm") as client:
        status, answer = await client.post("/search", {"q": "red fox", "num": 2, "timeout": 5, "gl": "us"})
        assert status == 200 and answer["organic"] == [
            {"title": "Title 0", "link": "document:0", "snippet": "red fox"},
            {"title": "Title 1", "link": "document:1", "snippet": "red dog"},
        ]
        status, answer = await client.post("/search", {"q": "nothing like it", "num": None})
        assert (status, answer["organic"]) == (200, [])
        async with client.session.get(f"{client.url}/health") as response:
            health = await response.json()
            assert response.status == 200 and health["status"] == "healthy" and health["timestamp"] > 1.7e9


@pytest.mark.covers("planning-26")
async def test_search_of_afm_asks_the_provider_through_the_cache_of_all_workers(
    index: HeldIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_A", "key-number-one")
    monkeypatch.setenv("KEY_B", "key-number-two")

    def answer(request: Request) -> Page | bytes:
        asked = orjson.loads(request.body)
        if asked["q"] == "bad":
            return Page('{"message": "no"}', 400)
        if request.headers["x-api-key"] == "key-number-one":
            return Page("slow down", 429)
        hits = [
            {"title": f"t{n}", "link": f"http://e.org/{n}", "snippet": "s", "position": n} for n in range(asked["num"])
        ]
        hits[0] |= {"date": "2024", "source": "Example"}
        return orjson.dumps({"organic": hits})

    with Site({"/search": answer}) as site:
        provider = {"type": "serper", "url": f"{site.origin}/search", "api_key_envs": ["KEY_A", "KEY_B"]}
        config = {"web": {"provider": provider}}
        async with (
            service(index, tmp_path, config, api="afm") as client,
            service(index, tmp_path, config, api="afm") as second,
        ):
            status, found = await client.post("/search", {"q": "q"})
            assert status == 200 and len(found["organic"]) == 10
            assert found["organic"][:2] == [
                {"title": "t0", "link": "http://e.org/0", "snippet": "s", "date": "2024", "source": "Example"},
                {"title": "t1", "link": "http://e.org/1", "snippet": "s"},
            ]
            assert len((await client.post("/search", {"q": " q ", "num": 50}))[1]["organic"]) == 50
            sent = len(site.requests)
            assert [orjson.loads(request.body)["num"] for request in site.requests] == [10, 10, 100]
            for worker in (client, second):
                assert len((await worker.post("/search", {"q": "q", "num": 30}))[1]["organic"]) == 30
            assert len(site.requests) == sent
            status, said = await client.post("/search", {"q": "bad"})
            assert status == 400 and "HTTP 400" in said["detail"]
        sent = len(site.requests)
        replay = {"web": {"provider": provider, "mode": "replay"}}
        async with service(index, tmp_path, replay, api="afm") as client:
            assert len((await client.post("/search", {"q": "q", "num": 100}))[1]["organic"]) == 100
            assert (await client.post("/search", {"q": "other"}))[0] == 404
            status, read = await client.post("/crawl_page", {**CRAWL, "urls": [f"{site.origin}/page"]})
            assert status == 200 and "replay fetches none" not in read["obs"] and "not on record" in read["obs"]
        assert len(site.requests) == sent
    assert b"key-number" not in (tmp_path / "web.sqlite").read_bytes()


def said(request: RecordedRequest) -> str:
    """Return what the model that reads pages says: a goal, or how often it read the word `metres`."""
    text = request.body["messages"][-1]["content"]
    return "Find the height." if "<page>" not in text else f"{text.count('metres')} heights; {'Find the' in text}"


@pytest.mark.covers("planning-27")
async def test_crawl_page_reads_three_urls_and_names_the_unreachable_one(index: HeldIndex, tmp_path: Path) -> None:
    with Site({"/a": "<p>It is 330 metres tall.", "/c": "<p>Nothing."}) as site:
        async with ScriptedServer(said) as server:
            model = {"model": "scripted", "api": "chat", "endpoints": [{"url": server.url}]}
            config = {
                "web": {"fetch": {"allowed_networks": ["127.0.0.0/8"], "reader_processes": 1, "attempts": 1}},
                "crawl": {"summarizer": "reader"},
                "models": {"reader": model},
            }
            gone = f"http://127.0.0.1:{free_port()}/b"
            async with service(index, tmp_path, config) as client:
                urls = [f"{site.origin}/a", gone, f"see [this page]({site.origin}/c)"]
                status, answer = await client.post("/crawl_page", {**CRAWL, "urls": urls})
                assert status == 200
                assert answer.keys() == {"success", "obs", "error_message", "processing_time"}
                assert answer["success"] is True and answer["error_message"] is None
                first, second, third = answer["obs"].split("\n\n")
                assert first == f"Page 1 [{site.origin}/a] Summary:\n1 heights; True"
                assert second.startswith(f"Page 2 [{gone}]: [") and second.endswith("]")
                assert third == f"Page 3 [{site.origin}/c] Summary:\n0 heights; True"
                goals = [one for one in server.requests if "<page>" not in str(one.body.get("messages"))]
                assert sum("I want the height." in str(one.body) for one in goals) == 1, "one goal per request"
                assert "sk-secret" not in str([one.body for one in server.requests])

                for none in ([], ["the second page", "ftp://e.org"]):
                    status, answer = await client.post("/crawl_page", {**CRAWL, "urls": none})
                    assert status == 200 and answer["success"] is False and answer["obs"] == ""
                    assert answer["error_message"] == "No valid URL found"
                for missing in ("urls", "task", "web_search_query", "think_content"):
                    body = {**CRAWL, "urls": urls}
                    del body[missing]
                    assert (await client.post("/crawl_page", body))[0] == 422
                num_requests = len(site.requests)
                body = {**CRAWL, "urls": urls[:1], "messages": None, "summary_prompt_type": None}
                status, answer = await client.post("/crawl_page", body)
                assert answer["obs"].endswith("1 heights; False") and len(site.requests) == num_requests


@pytest.mark.covers("planning-27")
async def test_crawl_page_refuses_loopback_addresses(index: HeldIndex, tmp_path: Path) -> None:
    with Site({"/a": "<p>secret"}) as site:
        config = {"web": {"fetch": {"reader_processes": 1}}}
        async with service(index, tmp_path, config) as client:
            urls = [f"{site.origin}/a", f"http://localhost:{site.port}/a", f"http://[::1]:{site.port}/a"]
            status, answer = await client.post("/crawl_page", {**CRAWL, "urls": urls})
    assert status == 200 and answer["success"] and not site.requests and "secret" not in answer["obs"]
    for number, line in enumerate(answer["obs"].split("\n\n"), 1):
        assert line.startswith(f"Page {number} [http") and "blocked" in line


async def test_unusable_summaries_are_marked_and_content_stays(index: HeldIndex, tmp_path: Path) -> None:
    with Site({"/a": "<p>It is 330 metres tall."}) as site:
        network = {"fetch": {"allowed_networks": ["127.0.0.0/8"], "reader_processes": 1}}
        async with service(index, tmp_path, {"web": network}) as client:
            body = {**CRAWL, "urls": [f"{site.origin}/a"]}
            status, answer = await client.post("/crawl_page", body)
            assert answer["obs"] == f"Page 1 [{site.origin}/a] Summary:\nIt is 330 metres tall."
        async with ScriptedServer(lambda request: "") as server:
            model = {"model": "scripted", "api": "chat", "endpoints": [{"url": server.url}], "retry_limit": 0}
            config = {"web": network, "crawl": {"summarizer": "reader"}, "models": {"reader": model}}
            async with service(index, tmp_path, config) as client:
                status, answer = await client.post("/crawl_page", body)
    assert status == 200 and answer["success"]
    assert answer["obs"].startswith(f"Page 1 [{site.origin}/a]: [Summary not available: ")
