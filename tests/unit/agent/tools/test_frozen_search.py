"""Search services that freeze: no time-out of the search. Virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import orjson
import pytest
from support.servers import own_clock

from treadle.core.llm.client import HttpClient
from treadle.core.llm.config import EndpointSettings
from treadle.retriever.client import SearchUnavailable, ServiceClient, ServiceClientSettings


@dataclass
class Service:
    """Answers a search after `search_s`, `other_s` if it is for `other`; GET /info at once; none while it is frozen."""

    search_s: float
    frozen: tuple[float, float] = (-1.0, -1.0)
    num_searches: int = 0
    other_s: float = 0.0

    async def _thaw(self) -> None:
        begin, end = self.frozen
        if begin <= (now := asyncio.get_running_loop().time()) < end:
            await asyncio.sleep(end - now)

    async def get(self, *_: object) -> tuple[int, dict[str, str], bytes]:
        await self._thaw()
        return 200, {}, orjson.dumps({"fingerprint": "abc"})

    async def post(self, _: object, body: bytes, *__: object) -> tuple[int, dict[str, str], bytes]:
        self.num_searches += 1
        await self._thaw()
        await asyncio.sleep(self.other_s if b"other" in body else self.search_s)
        await self._thaw()
        return 200, {}, orjson.dumps([{"id": "1", "contents": "T\nx"}])


def search(service: Service, monkeypatch: pytest.MonkeyPatch, limit_s: float, others_s: tuple[float, ...] = ()) -> int:
    """Search one second after the start; return the number of documents.

    Searches for `other` begin `others_s` seconds later.
    """
    for method in ("get", "post"):
        monkeypatch.setattr(HttpClient, method, getattr(service, method))

    async def work() -> int:
        client = ServiceClient(ServiceClientSettings(endpoints=(EndpointSettings(url="http://127.0.0.1:9"),)))
        await client.open()
        await asyncio.sleep(1.0)

        async def other(after_s: float) -> None:
            await asyncio.sleep(after_s)
            await client.search("other", 1, deadline=1e9)

        tasks = [asyncio.create_task(other(after_s)) for after_s in others_s]
        try:
            return len(await client.search("q", 1, deadline=1.0 + limit_s))
        finally:
            for task in tasks:
                task.cancel()
            await client.close()

    return own_clock.run(work())


def test_service_that_thaws_after_the_limit_is_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(0.3, frozen=(1.0, 4.0))
    assert search(service, monkeypatch, 2.0) == 1 and service.num_searches == 2


def test_slow_search_of_a_live_service_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(5.0)
    with pytest.raises(TimeoutError):
        search(service, monkeypatch, 2.0)
    assert service.num_searches == 1


def test_slow_search_after_a_freeze_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(5.0, frozen=(1.0, 4.0))
    with pytest.raises(TimeoutError):
        search(service, monkeypatch, 2.0)
    assert service.num_searches == 2


def test_frozen_service_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SearchUnavailable, match="does not answer"):
        search(Service(0.3, frozen=(1.0, 1e6)), monkeypatch, 2.0)


@pytest.mark.parametrize("end_s", [30.0, 1e6])
def test_service_that_answers_another_search_and_then_freezes_is_not_a_timeout(
    monkeypatch: pytest.MonkeyPatch, end_s: float
) -> None:
    service = Service(0.6, frozen=(1.4, end_s), other_s=0.2)
    with pytest.raises(SearchUnavailable, match="does not answer"):
        search(service, monkeypatch, 2.0, others_s=(0.0,))


def test_slow_search_while_others_are_answered_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(5.0, other_s=0.2)
    with pytest.raises(TimeoutError):
        search(service, monkeypatch, 2.0, others_s=(0.0, 1.7))
    assert service.num_searches == 3
