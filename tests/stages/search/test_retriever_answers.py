"""Responses that third-party search services may send, and which are refused immediately:
docs/behaviour/retrieval.md.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.servers.scripted_search import FOUND, Answer, Pauses, Service, client, later, serving

from treadle.core.errors import ToolError
from treadle.retriever.client import SearchUnavailable, ServiceClient, ServiceClientSettings, ask_fingerprint

NO_INFO: Answer = (404, {})
DOCUMENT = {"id": "7", "title": "Title", "text": "Text"}
READ = [("7", "Title\nText")]


async def searched(service: Service, path: str = "", **settings: Any) -> list[tuple[str, str]]:
    async with serving(service), client(f"{service.url}{path}", **settings) as searcher:
        return [(found.id, found.contents) for found in await searcher.search("q", 2, deadline=later())]


@pytest.mark.parametrize(
    ("answer", "read"),
    [
        ([{"id": "7", "contents": "Title\nText"}], READ),
        ([[{"id": "7", "contents": "Title\nText"}], [0.5]], READ),
        ([[{"id": "7", "contents": "Title\nText"}, {"id": "8", "contents": "b"}], [2, 1e-9]], [*READ, ("8", "b")]),
        ([DOCUMENT], READ),
        ([{**DOCUMENT, "contents": None, "score": None, "url": "x"}], READ),
        ([{"id": 7, "contents": "Title\nText", "title": "another"}], READ),
        ([{"title": "Title", "text": "Text"}], [("", "Title\nText")]),
        ([{"text": "Text"}], [("", "Text")]),
        ([{"title": None, "text": "Text"}], [("", "Text")]),
        ([{"contents": "Text"}], [("", "Text")]),
        (["Title\nText", "bare"], [("", "Title\nText"), ("", "bare")]),
        ([["one", "two"], [2, 1]], [("", "one"), ("", "two")]),
        ([], []),
        ([[], []], []),
        (["one", "two", "three"], [("", "one"), ("", "two")]),
    ],
    ids=json.dumps,
)
async def test_search_responses_are_parsed(answer: Any, read: list[tuple[str, str]]) -> None:
    assert await searched(Service((200, answer), info=NO_INFO)) == read


@pytest.mark.parametrize(
    ("result", "read"),
    [
        ([{"document": {"id": "7", "contents": "Title\nText"}, "score": 0.5}], READ),
        ([{"document": DOCUMENT}], READ),
        ([{"document": "Title\nText", "score": 1}], [("", "Title\nText")]),
        ([DOCUMENT], READ),
        ([], []),
    ],
    ids=json.dumps,
)
async def test_retrieve_address_uses_the_search_r1_protocol(result: Any, read: list[tuple[str, str]]) -> None:
    service = Service((200, {"result": [result]}), info=NO_INFO, trial=(200, {"result": [[]]}))
    assert await searched(service, "/retrieve") == read
    assert service.asked == [{"queries": ["q"], "topk": 2, "return_scores": True}]


async def test_address_may_end_in_search() -> None:
    assert await searched(Service(), "/search/") == [("7", "Title\nText\nmore"), ("8", "bare")]


REFUSED: list[tuple[str, str, Answer, str]] = [
    ("null", "", (200, "null"), r"got null, expected a JSON list of documents .*, or \[documents, scores\]: null"),
    ("nothing", "", (200, ""), r"got no JSON .*\(empty\)"),
    ("a page", "", (200, "<!DOCTYPE html>\n<b>Hi</b>"), "got no JSON .*<!DOCTYPE html> <b>Hi</b>"),
    ("cut off", "", (200, '[{"id": "1"'), "got no JSON"),
    ("an object", "", (200, {"hits": [], "took": 1}), "got an object with 'hits', 'took', expected"),
    ("Search-R1's at /search", "", (200, {"result": [[]]}), "got an object with 'result'"),
    ("numbers", "", (200, [1, 2]), "a number as document 1,"),
    ("no text", "", (200, [DOCUMENT, {"id": "8"}]), "document 2 without a text in 'contents' or 'text'"),
    ("text of another kind", "", (200, [{"text": "x", "title": 3}]), "document 1 without a text"),
    ("contents of another kind", "", (200, [{"text": "x", "contents": ["x"]}]), "document 1 without a text"),
    ("a null", "", (200, [None]), "null as document 1,"),
    ("an id of another kind", "", (200, [{"id": [1], "text": "x"}]), "a list as 'id' of document 1,"),
    ("a batch", "", (200, [[DOCUMENT]]), "a list as document 1,"),
    ("missing scores", "", (200, [[DOCUMENT, DOCUMENT], [1.0]]), "2 documents with 1 scores"),
    ("NaN", "", (200, '[[{"text": "x"}], [NaN]]'), "score"),
    ("null scores", "", (200, [[DOCUMENT], [None]]), "null as the score of document 1,"),
    ("words for scores", "", (200, [[DOCUMENT], ["1"]]), "a text as the score of document 1,"),
    ("two results", "/retrieve", (200, {"result": [[], []]}), "2 results for 1 query"),
    ("no result", "/retrieve", (200, {"result": []}), "0 results for 1 query"),
    ("a flat result", "/retrieve", (200, {"result": [DOCUMENT]}), "an object with 'id', 'text', 'title' as the"),
    ("a list at /retrieve", "/retrieve", (200, [DOCUMENT]), 'got a list, expected {"result": .*"document"'),
    ("a null score", "/retrieve", (200, {"result": [[{"document": "x", "score": None}]]}), "null as the score of"),
    ("no content", "", (204, ""), r"got no JSON"),
    ("too large", "", (200, "[" + " " * 2_000 + "]"), "the answer is larger than 1024 bytes"),
    ("no route", "", (404, {"detail": "Not Found"}), "HTTP 404: .*an endpoint is the part of the address before /sea"),
    ("no POST", "", (405, ""), "HTTP 405: .*an endpoint is the part of the address before /search"),
    ("no key", "", (401, {"detail": "who?"}), "HTTP 401: .*`api_key_env` names the environment variable"),
    ("a wrong key", "", (403, ""), "HTTP 403: .*`api_key_env` names the environment variable"),
    ("another body", "", (422, {"detail": "field 'q' is missing"}), "HTTP 422: .*field 'q' is missing"),
    ("a redirect", "", (307, "", {"Location": "http://h/find/"}), "HTTP 307, moved to http://h/find/; use that"),
    ("hostile words", "", (400, "\x1b[31m\nno"), "HTTP 400: .31m no; it refuses the request$"),
]


@pytest.mark.parametrize(("path", "answer", "said"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
async def test_unusable_response_raises_immediately_on_open_and_on_search(path: str, answer: Answer, said: str) -> None:
    good: Answer = (200, {"result": [[]]} if path else FOUND)
    for service in (Service(info=NO_INFO, trial=answer), Service(answer, info=NO_INFO, trial=good)):
        pauses = Pauses()
        async with serving(service):
            with pytest.raises(ToolError, match=said) as refused:
                async with client(f"{service.url}{path}", pauses=pauses, max_response_bytes=1024) as searcher:
                    await searcher.search("q", 2, deadline=later())
        message = str(refused.value)
        assert message.startswith(f"search service {service.url}{path or '/search'}: ")
        assert message.isprintable() and not refused.value.retryable
        assert pauses.seconds == [] and len(service.tried) == 1


@pytest.mark.parametrize(
    "info", [(404, ""), (405, ""), (501, "<html>"), (500, ""), (200, "<html>"), (200, {}), (302, "")]
)
async def test_custom_service_needs_no_other_route(info: Answer) -> None:
    pauses = Pauses()
    assert len(await searched(Service(info=info), pauses=pauses)) == 2 and pauses.seconds == []


async def test_service_is_probed_with_the_configured_number_of_documents() -> None:
    service = Service(info=NO_INFO)
    async with serving(service):
        settings = ServiceClientSettings.model_validate({"endpoints": [{"url": service.url}]})
        assert await ask_fingerprint(settings, 7) == "unknown"
    assert service.tried == [{"query": "test", "top_n": 7}]


async def test_busy_service_is_waited_for_on_open_but_a_broken_one_fails_soon() -> None:
    busy, pauses = Service(info=NO_INFO), Pauses()
    busy.trial = [(503, {}), (429, {}), (200, FOUND)]
    async with serving(busy), client(busy.url, pauses=pauses):
        assert len(pauses.seconds) == 2
    broken = Service(info=NO_INFO, trial=(500, {"detail": "boom"}))
    async with serving(broken):
        settings = ServiceClientSettings.model_validate({"endpoints": [{"url": broken.url}], "retry_limit": 2})
        searcher = ServiceClient(settings, sleep=Pauses())
        with pytest.raises(SearchUnavailable, match="not ready: HTTP 500: .*boom"):
            await searcher.open()
        await searcher.close()
    assert len(broken.tried) == 3
