"""Answers of search providers, written by hand after their documentation, and providers that give them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from support.servers.web_servers import Page, Request, Site

from treadle.web.config import ProviderSettings
from treadle.web.providers import WebProvider
from treadle.web.types import WebHit

SERPER = ProviderSettings(type="serper", api_key_envs=("KEY_A",))
BRAVE = ProviderSettings(type="brave", api_key_envs=("KEY_A",))
BING = ProviderSettings(type="bright_data", api_key_envs=("KEY_A",), zone="serp_1")
GOOGLE = ProviderSettings(type="bright_data", api_key_envs=("KEY_A",), zone="serp_1", engine="google")
SEARXNG = ProviderSettings(type="searxng", url="http://localhost:8888")
ENVIRON = {"KEY_A": "secret-a-111", "KEY_B": "secret-b-222"}
KEY = ENVIRON["KEY_A"]

TOWER = WebHit("Eiffel Tower", "https://example.org/tower", "The tower is 330 metres tall.", "", "2024-05-01")
ANSWERS: dict[str, tuple[ProviderSettings, dict[str, Any], tuple[WebHit, ...]]] = {
    "serper": (
        SERPER,
        {
            "searchParameters": {"q": "eiffel tower", "gl": "us", "hl": "en", "num": 10, "type": "search"},
            "knowledgeGraph": {"title": "Eiffel Tower", "type": "Tower in Paris", "website": "https://example.org/k"},
            "organic": [
                {
                    "title": "Eiffel Tower",
                    "link": "https://example.org/tower",
                    "snippet": "The tower is 330 metres tall.",
                    "date": "2024-05-01",
                    "sitelinks": [{"title": "Tickets", "link": "https://example.org/tickets"}],
                    "position": 1,
                },
                {"title": "No link", "snippet": "nothing", "position": 2},
            ],
            "peopleAlsoAsk": [{"question": "How tall?", "link": "https://example.org/ask"}],
            "credits": 1,
        },
        (TOWER,),
    ),
    "brave": (
        BRAVE,
        {
            "type": "search",
            "query": {"original": "eiffel tower", "more_results_available": True},
            "web": {
                "type": "search",
                "results": [
                    {
                        "title": "Eiffel Tower &amp; <strong>more</strong>",
                        "url": "https://example.org/tower",
                        "description": "It&#x27;s <strong>330 metres</strong> tall.",
                        "page_age": "2024-05-01T00:00:00",
                        "age": "May 1, 2024",
                        "profile": {"name": "Example", "url": "https://example.org", "long_name": "example.org"},
                    }
                ],
            },
            "videos": {"type": "videos", "results": [{"title": "A video", "url": "https://example.org/video"}]},
        },
        (
            WebHit(
                "Eiffel Tower & more", "https://example.org/tower", "It's 330 metres tall.", "example.org",
                "2024-05-01T00:00:00",
            ),
        ),
    ),
    "bright_data": (
        BING,
        {
            "general": {"search_engine": "bing", "query": "eiffel tower", "language": "en"},
            "organic": [
                {
                    "link": "https://example.org/tower",
                    "display_link": "https://example.org",
                    "title": "Eiffel Tower",
                    "description": "The tower is 330 metres tall.",
                    "date": "2024-05-01",
                    "rank": 1,
                    "global_rank": 2,
                }
            ],
            "top_ads": [{"link": "https://example.org/ad", "title": "Buy a tower"}],
        },
        (TOWER,),
    ),
    "searxng": (
        SEARXNG,
        {
            "query": "eiffel tower",
            "number_of_results": 0,
            "results": [
                {
                    "url": "https://example.org/tower",
                    "title": "Eiffel Tower",
                    "content": "The tower is 330 metres tall.",
                    "publishedDate": "2024-05-01",
                    "engine": "bing",
                    "engines": ["bing"],
                    "category": "general",
                },
                {"url": "https://example.org/other", "title": "Other", "content": "", "publishedDate": None},
            ],
            "answers": [],
            "unresponsive_engines": [["duckduckgo", "timeout"]],
        },
        (TOWER, WebHit("Other", "https://example.org/other", "")),
    ),
}  # fmt: skip


class Day:
    """A clock that only pauses set on."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


GOOD = Page(json.dumps(ANSWERS["serper"][1]), media_type="application/json")
NOTHING = Page('{"searchParameters": {}, "organic": []}', media_type="application/json")
Script = list[Page | Callable[[Request], Page]]


def scripted(*answers: Page) -> Callable[[Request], Page]:
    """Answers in order; the last is repeated."""
    left = list(answers)
    return lambda request: left.pop(0) if len(left) > 1 else left[0]


def provider(site: Site, day: Day, *names: str, **changed: Any) -> WebProvider:
    settings = ProviderSettings(
        type="serper", url=site.url("/search"), api_key_envs=names or ("KEY_A",),
        max_queries_per_s=1e9, **changed,
    )  # fmt: skip
    return WebProvider(settings, environ=ENVIRON, clock=day, sleep=day.sleep)


async def found(asked: WebProvider, deadline: float = 60.0) -> tuple[WebHit, ...]:
    try:
        return await asked.search("eiffel tower", "en", deadline=deadline)
    finally:
        await asked.close()


def keys_sent(site: Site) -> list[str]:
    return [request.headers["x-api-key"] for request in site.requests]


def refusing(*weather: Page, body: str = '{"message": "Query pattern not allowed"}') -> Site:
    """Return a provider that refuses `bad 403` with 403; `weather`: its first answers to that query, in order."""
    plain = scripted(*weather, GOOD)

    def answer(request: Request) -> Page:
        word, _, status = json.loads(request.body)["q"].partition(" ")
        return plain(request) if word == "weather" else Page(body, int(status)) if word == "bad" else GOOD

    return Site({"/search": answer})


def queries_sent(site: Site) -> list[str]:
    return [json.loads(request.body)["q"] for request in site.requests]
