"""The retrieval service over real HTTP on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.servers.held_index import HeldIndex
from support.servers.served_index import served

from treadle.core.errors import ConfigError, DataError, EndpointUnavailable
from treadle.retriever import open_index as opening
from treadle.retriever.config import EncoderSettings, IndexSettings
from treadle.retriever.dense.encoders import HashingEncoder
from treadle.retriever.index import Index
from treadle.retriever.open_index import open_index
from treadle.retriever.service.cache import RankingCache
from treadle.retriever.service.config import ServiceSettings
from treadle.retriever.service.server import serve

JSON = {"Content-Type": "application/json"}
TEXTS = ("red fox", "red dog", "blue fox", "green")


class Client:
    """A session and the service's address."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session, self.url = session, url

    async def get(self, path: str, **headers: str) -> tuple[int, Any]:
        async with self.session.get(self.url + path, headers=headers) as response:
            is_json = response.content_type == "application/json"
            return response.status, await response.json() if is_json else await response.text()

    async def post(self, path: str, body: Any = None, **options: Any) -> tuple[int, Any]:
        given = {"json": body} if body is not None else {}
        async with self.session.post(self.url + path, **given, **options) as response:
            return response.status, await response.json()


@asynccontextmanager
async def service(index: Index | asyncio.Future[Index], **settings: Any) -> AsyncIterator[Client]:
    async with served(index, **settings) as url, aiohttp.ClientSession() as session:
        yield Client(session, url)


async def waiting(client: Client) -> int:
    """Return the number of queries that no worker has taken yet."""
    lines = (await client.get("/metrics"))[1].splitlines()
    return int(float(next(line for line in lines if line.startswith("treadle_retriever_waiting_queries ")).split()[1]))


@pytest.fixture
def index(tmp_path: Path) -> HeldIndex:
    return HeldIndex(tmp_path, TEXTS)


@pytest.mark.covers("evaluation-20")
async def test_search_returns_text_ids_full_contents_and_decreasing_scores(index: HeldIndex) -> None:
    async with service(index) as client:
        assert await client.post("/search", {"query": "red fox"}) == (
            200,
            [
                {"id": "0", "contents": "Title 0\nred fox"},
                {"id": "1", "contents": "Title 1\nred dog"},
                {"id": "2", "contents": "Title 2\nblue fox"},
            ],
        )
        status, (documents, scores) = await client.post("/search", {"query": "red fox", "return_score": True})
        assert status == 200 and len(documents) == 3 and scores == [2.0, 1.0, 1.0]
        assert await client.post("/search", {"query": "nothing like it"}) == (200, [])
    assert index.closed


@pytest.mark.covers("evaluation-20")
@pytest.mark.parametrize("field", ["query", "queries"])
async def test_batch_accepts_query_or_queries(index: HeldIndex, field: str) -> None:
    async with service(index) as client:
        status, found = await client.post("/batch_search", {field: ["green", "dog", "green"], "top_n": 1})
        assert status == 200 and [[one["id"] for one in documents] for documents in found] == [["3"], ["1"], ["3"]]
        status, (documents, scores) = await client.post("/batch_search", {field: ["blue"], "return_score": True})
        assert status == 200 and [one["id"] for one in documents[0]] == ["2"] and scores == [[1.0]]
        assert await client.post("/batch_search", {field: []}) == (200, [])


@pytest.mark.covers("evaluation-23")
async def test_batch_of_any_size_matches_single_queries(index: HeldIndex) -> None:
    queries = ["red", "fox", "blue dog", "green", "none"]
    async with service(index, cache_mib=0, max_batch=2) as client:
        single = [(await client.post("/search", {"query": query}))[1] for query in queries]
        for size in range(1, 6):
            assert (await client.post("/batch_search", {"query": queries[:size]}))[1] == single[:size]


@pytest.mark.covers("evaluation-20")
@pytest.mark.parametrize(
    ("path", "body", "status", "detail"),
    [
        ("/search", {"query": " \n"}, 400, "Query content cannot be empty"),
        ("/batch_search", {"query": ["red", " "]}, 400, "Query content cannot be empty: query 1 is blank"),
        ("/search", {}, 422, None),
        ("/search", {"query": 5}, 422, None),
        ("/search", {"query": "red", "top_n": 0}, 422, None),
        ("/search", {"query": "red", "top_n": -1}, 422, None),
        ("/search", {"query": "red", "top_n": 1_000_000}, 422, "top_n must be at most 100"),
        ("/batch_search", {"query": "red"}, 422, None),
        ("/batch_search", {"queries": ["x"] * 2000}, 422, "a batch may have at most 1024 queries"),
        ("/search", {"query": "a" * 10_000_000}, 413, None),
    ],
)
async def test_bad_requests_get_documented_responses(
    index: HeldIndex, path: str, body: dict[str, Any], status: int, detail: str | None
) -> None:
    async with service(index) as client:
        found = await client.post(path, body)
        assert found[0] == status and (detail is None or found[1] == {"detail": detail})
        assert await client.post("/search", {"query": "green"}) == (200, [{"id": "3", "contents": "Title 3\ngreen"}])
    assert len(index.batches) == 1


async def test_rejects_a_body_that_is_not_json_or_has_no_length(index: HeldIndex) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b" " * 65_536

    async with service(index) as client:
        for data in (b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"query": "\\ud800"}'):
            status, _ = await client.post("/search", data=data, headers=JSON)
            assert status in (200, 422), data[:20]
        # The service may close the connection before it has taken all of it.
        with contextlib.suppress(aiohttp.ClientConnectionError):
            assert (await client.post("/search", data=endless(), headers=JSON))[0] == 413


@pytest.mark.parametrize("path", ["/search", "/batch_search"])
@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
async def test_rejects_content_types_that_browsers_send_without_preflight(
    index: HeldIndex, path: str, media_type: str
) -> None:
    async with service(index) as client:
        status, said = await client.post(path, data=b'{"query": "red"}', headers={"Content-Type": media_type})
        assert status == 415 and "Content-Type: application/json" in said["detail"]
    assert not index.batches


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "attacker.example"}, 421),
        ({"Host": "192.0.2.1:1243"}, 421),
        ({"Origin": "http://attacker.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}, 403),
    ],
)
async def test_cross_origin_requests_are_refused(index: HeldIndex, headers: dict[str, str], status: int) -> None:
    async with service(index) as client:
        async with client.session.post(f"{client.url}/search", json={"query": "red"}, headers=headers) as answer:
            assert answer.status == status
        for path in ("/health", "/info", "/metrics"):
            async with client.session.get(client.url + path, headers=headers) as answer:
                assert answer.status == status
    assert not index.batches


async def test_incomplete_body_times_out(index: HeldIndex) -> None:
    async with service(index, timeout_s=0.05) as client:
        host, port = client.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /search HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n"
        writer.write(head.encode() + b'{"query": ')
        assert b"408" in await reader.readline()
        writer.close()


async def test_client_disconnect_logs_no_traceback(index: HeldIndex, caplog: pytest.LogCaptureFixture) -> None:
    async with service(index) as client:
        host, port = client.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /search HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n"
        writer.write(head.encode() + b'{"query": ')
        await writer.drain()
        writer.transport.abort()
        while (
            'treadle_retriever_requests_total{route="search",status="499"} 1.0' not in (await client.get("/metrics"))[1]
        ):
            await asyncio.sleep(0)
    assert "Traceback" not in caplog.text and not [one for one in caplog.records if one.levelname == "ERROR"]


async def test_hostile_ids_and_texts_pass_through_as_json_text(tmp_path: Path) -> None:
    ids = ["../../etc/passwd", "<script>alert(1)</script>", "\x1b[31m", '";DROP TABLE', "\u202e"]
    async with service(HeldIndex(tmp_path, ["red"] * len(ids), ids)) as client:
        status, found = await client.post("/search", {"query": "red"})
        assert status == 200 and [one["id"] for one in found] == ids


@pytest.mark.covers("evaluation-21")
async def test_asking_for_more_documents_than_exist_returns_each_once(index: HeldIndex) -> None:
    async with service(index) as client:
        _, found = await client.post("/search", {"query": "red fox dog blue green", "top_n": 100})
        assert sorted(one["id"] for one in found) == ["0", "1", "2", "3"]


@pytest.mark.covers("evaluation-20", "evaluation-27")
async def test_parallel_queries_share_searches_while_health_responds(index: HeldIndex) -> None:
    index.held = True
    async with service(index, num_workers=2, max_batch=4) as client:
        searches = [asyncio.create_task(client.post("/search", {"query": f"red {number}"})) for number in range(16)]
        await asyncio.to_thread(index.began.acquire)
        await asyncio.to_thread(index.began.acquire)
        while await waiting(client) + sum(map(len, index.batches)) < 16:
            pass
        assert await client.get("/health") == (
            200,
            {"status": "healthy", "retrievers": {"total": 2, "available": 0}},
        )
        index.go.release(16)
        assert {status for status, _ in await asyncio.gather(*searches)} == {200}
        assert (await client.get("/health"))[1]["retrievers"] == {"total": 2, "available": 2}
    assert len(index.batches) <= 6


class HeldEncoder(HashingEncoder):
    """Keeps the batches of queries that it is given; each waits until it is let go."""

    def __init__(self) -> None:
        super().__init__(EncoderSettings(type="hashing"))
        self.batches: list[list[str]] = []
        self.began = threading.Semaphore(0)
        self.go = threading.Semaphore(0)

    def _encode(self, texts: Sequence[str], *, is_query: bool) -> Any:
        if is_query:
            self.batches.append(list(texts))
            self.began.release()
            self.go.acquire()
        return super()._encode(texts, is_query=is_query)


@pytest.mark.covers("evaluation-27")
async def test_parallel_queries_are_encoded_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = HeldEncoder()
    monkeypatch.setattr(opening, "open_encoder", lambda settings: encoder)
    (tmp_path / "corpus.jsonl").write_text('{"id": "0", "contents": "Vorna\\nred tower"}\n')
    settings = IndexSettings(engine="dense", corpus=(tmp_path / "corpus.jsonl",), cache_folder=tmp_path / "cache")
    async with service(open_index(settings), num_workers=1) as client:
        searches = [asyncio.create_task(client.post("/search", {"query": f"red {number}"})) for number in range(16)]
        await asyncio.to_thread(encoder.began.acquire)
        while await waiting(client) + sum(map(len, encoder.batches)) < 16:
            pass
        assert (await client.get("/health"))[0] == 200
        encoder.go.release(16)
        assert {status for status, _ in await asyncio.gather(*searches)} == {200}
    # Requests that arrived during the first encoding are one more batch, instead of 16.
    assert len(encoder.batches) <= 2 and sum(map(len, encoder.batches)) == 16


async def test_full_queue_returns_429_with_retry_after(index: HeldIndex) -> None:
    index.held = True
    async with service(index, num_workers=1, max_waiting=1, cache_mib=0) as client:
        first = asyncio.create_task(client.post("/search", {"query": "red"}))
        await asyncio.to_thread(index.began.acquire)
        second = asyncio.create_task(client.post("/search", {"query": "fox"}))
        while not await waiting(client):
            pass
        async with client.session.post(client.url + "/search", json={"query": "dog"}) as response:
            assert response.status == 429 and int(response.headers["Retry-After"]) >= 1
        index.go.release(2)
        assert [status for status, _ in await asyncio.gather(first, second)] == [200, 200]
        metrics = (await client.get("/metrics"))[1]
    assert 'treadle_retriever_requests_total{route="search",status="429"} 1.0' in metrics


async def test_slow_search_returns_504(index: HeldIndex) -> None:
    index.held = True
    async with service(index, timeout_s=0.01) as client:
        assert (await client.post("/search", {"query": "red"}))[0] == 504
        index.held = False
        index.go.release(10)
        while (await client.get("/health"))[1]["retrievers"]["available"] < 2:
            pass


async def test_searches_are_deferred_until_the_index_is_loaded(index: HeldIndex) -> None:
    loaded: asyncio.Future[Index] = asyncio.get_running_loop().create_future()
    async with service(loaded) as client:
        status, health = await client.get("/health")
        assert (status, health["status"]) == (503, "loading")
        assert (await client.post("/search", {"query": "red"}))[0] == 503
        assert (await client.get("/info"))[0] == 503
        loaded.set_result(index)
        while (await client.get("/health"))[0] != 200:
            pass
        assert (await client.get("/info"))[1]["num_documents"] == 4


async def test_failed_search_reports_its_cause_and_the_service_continues(index: HeldIndex) -> None:
    index.failure = EndpointUnavailable("the encoder \x1b[31mis down")
    async with service(index) as client:
        status, answer = await client.post("/search", {"query": "red"})
        assert status == 503 and "the encoder" in answer["detail"] and "\x1b" not in answer["detail"]
        index.failure = DataError("the index is damaged")
        assert (await client.post("/search", {"query": "red"}))[0] == 500
        index.failure = RuntimeError("a bug of the engine")
        assert await client.post("/search", {"query": "red"}) == (
            500,
            {"detail": "the search failed; see the service's log"},
        )
        index.failure = None
        assert (await client.post("/search", {"query": "red"}))[0] == 200


@pytest.mark.covers("evaluation-28")
async def test_answer_cache_is_used_and_bounded(index: HeldIndex) -> None:
    async with service(index, cache_mib=0.05) as client:
        for _ in range(2):
            _, found = await client.post("/search", {"query": " red fox "})
            assert [one["id"] for one in found] == ["0", "1", "2"]
        assert index.batches == [["red fox"]]
        assert (await client.post("/search", {"query": "red fox", "top_n": 1}))[1] == found[:1]
        for start in range(0, 10_000, 1000):
            await client.post("/batch_search", {"queries": [f"red {number}" for number in range(start, start + 1000)]})
        await client.post("/search", {"query": "red fox"})
        assert index.batches[-1] == ["red fox"], "the oldest entries were dropped"
        assert "treadle_retriever_cached_queries_total 1.0" in (await client.get("/metrics"))[1]


@pytest.mark.covers("evaluation-28")
async def test_rebuilt_index_never_returns_cached_answers_of_the_old_one(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    settings = IndexSettings(corpus=(corpus,), cache_folder=tmp_path / "cache")

    async def ask(text: str) -> tuple[str, str]:
        """Return the contents found twice for one query over a corpus of one document, and the index's fingerprint."""
        corpus.write_text(json.dumps({"id": "0", "contents": f"Title\n{text}"}) + "\n")
        async with service(open_index(settings)) as client:
            (first,), (again,) = [(await client.post("/search", {"query": "red"}))[1] for _ in range(2)]
            assert "treadle_retriever_cached_queries_total 1.0" in (await client.get("/metrics"))[1]
            assert first == again
            return first["contents"], (await client.get("/info"))[1]["fingerprint"]

    (old, old_print), (new, new_print) = await ask("red fox"), await ask("red dog")
    assert (old, new) == ("Title\nred fox", "Title\nred dog")
    assert old_print != new_print


@pytest.mark.covers("evaluation-28")
def test_answer_cache_size_is_bounded() -> None:
    cache, most = RankingCache(200_000), 0
    ranking = [(row, 0.5) for row in range(4)]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(10_000):
            cache.put(f"distinct query {number}", 4, ranking)
            most = max(most, tracemalloc.get_traced_memory()[0] - before)
            assert cache.num_bytes <= 200_000
    finally:
        tracemalloc.stop()
    assert cache.get("distinct query 9999", 4) == ranking and cache.get("distinct query 0", 4) is None
    assert most < 400_000, "what it says that it takes is about what it takes"


async def test_token_protects_everything_but_health(index: HeldIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETRIEVER_TOKEN", "s3cret")
    async with service(index, token_env="RETRIEVER_TOKEN") as client:
        assert (await client.get("/health"))[0] == 200
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "s3cret"}):
            for path in ("/info", "/metrics", "/docs", "/openapi.json"):
                assert (await client.get(path, **headers))[0] == 401
            assert (await client.post("/search", {"query": "red"}, headers=headers))[0] == 401
        assert (await client.post("/search", {"query": "red"}, headers={"Authorization": "Bearer s3cret"}))[0] == 200
    assert len(index.batches) == 1


def test_public_address_requires_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RETRIEVER_TOKEN", raising=False)
    for settings in ({"host": "0.0.0.0"}, {"host": "::"}, {"host": "192.0.2.1"}, {"token_env": "RETRIEVER_TOKEN"}):
        with pytest.raises(ConfigError, match="token"):
            ServiceSettings(**settings).token()
    for host in ("127.0.0.1", "127.0.0.2", "localhost", "::1"):
        assert ServiceSettings(host=host).token() is None


async def test_any_loopback_address_is_served(index: HeldIndex) -> None:
    async with service(index) as client:
        for host, status in (("127.0.0.2:80", 200), ("localhost", 200), ("127.0.0.2.example:80", 421)):
            assert (await client.get("/health", Host=host))[0] == status


async def test_write_requests_are_refused(index: HeldIndex) -> None:
    async with service(index) as client:
        paths = (await client.get("/openapi.json"))[1]["paths"]
        offered = {(method, path) for path, methods in paths.items() for method in methods}
        assert offered == {
            ("get", "/health"), ("get", "/info"), ("get", "/metrics"), ("post", "/search"), ("post", "/batch_search"),
            ("post", "/retrieve"),
        }  # fmt: skip
        for path in (*paths, "/docs", "/"):
            for method in ("PUT", "PATCH", "DELETE"):
                async with client.session.request(method, client.url + path) as answer:
                    assert answer.status in (404, 405)


async def test_documentation_pages_need_no_other_host(index: HeldIndex) -> None:
    async with service(index) as client:
        status, page = await client.get("/docs")
        assert status == 200 and "http://" not in page.replace(client.url, "") and "https://" not in page
        _, description = await client.get("/openapi.json")
    assert {"/search", "/batch_search", "/health", "/info", "/metrics"} <= description["paths"].keys()
    body = description["paths"]["/search"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"query", "top_n", "return_score"} == body["properties"].keys()


def test_unopenable_index_ends_the_service_with_its_cause() -> None:
    def open_index() -> Index:
        raise DataError("corpus c.jsonl row 3: 'id' must be a non-empty string")

    urls: list[str] = []
    with pytest.raises(DataError, match="row 3"):
        serve(ServiceSettings(port=0), open_index, urls.append)
    assert urls[0].startswith("http://127.0.0.1:")


def test_port_in_use_is_reported_in_one_line(index: HeldIndex) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match="cannot listen on"):
        serve(ServiceSettings(port=taken.getsockname()[1]), lambda: index, print)
