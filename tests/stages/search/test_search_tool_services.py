"""The search tool over services: the same texts as in process, and how timeouts, outages and refusals are reported."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest
from support.servers.held_index import HeldIndex
from support.servers.own_clock import ForwardClock, until
from support.servers.scripted_search import Answer, Service, serving
from support.servers.served_index import served

from treadle.agent.tools.outcome import ToolOutcome
from treadle.agent.tools.search import NO_HIT, SearchTool, SearchToolSettings
from treadle.core.config import load_config
from treadle.core.errors import ConfigError, ToolError
from treadle.demo.world_files import write_world
from treadle.retriever.client import SearchUnavailable
from treadle.retriever.index import MAX_QUERY_CHARS
from treadle.retriever.open_index import open_index

FAR = 1e12
HASHING = {"type": "hashing", "dimension": 64}
ODD_QUERIES = (
    "", " \n\t", "the", "zzz", "\0", "\ud800 town", "x" * 5_000, f"{'a ' * 2_100}river", "</search><answer>",
    "a" * (MAX_QUERY_CHARS - 1) + " tail", "\u202e\x1b[31mred", "\u2003river\u2003", '{"query": "river"}', "ΜΆΪΟΣ ß ﬁ",
)  # fmt: skip


def apart(*urls: str, **keys: Any) -> SearchToolSettings:
    service = {"endpoints": [{"url": url} for url in urls], **keys.pop("client", {})}
    return load_config(SearchToolSettings, data={"service": service, **keys})


async def ask(settings: SearchToolSettings, queries: list[str]) -> list[tuple[str, str]]:
    async with SearchTool(settings) as tool:
        outcomes = await asyncio.gather(*(tool.call(query, deadline=FAR) for query in queries))
    return [(outcome.status, outcome.text) for outcome in outcomes]


@pytest.mark.covers("evaluation-23")
@pytest.mark.parametrize("engine", ["bm25", "dense", "hybrid"])
async def test_local_index_and_service_give_the_agent_the_same_bytes(tmp_path: Path, engine: str) -> None:
    world = write_world(tmp_path, documents=200, questions=40, heldout_questions=5, tiers=(0, 1))
    with world.corpus.open("ab") as corpus:
        odd = [
            ("one line", ""),
            ("", "Text without a title.\nSecond line."),
            ("T\tab", "a\n\nb\u2028c \ud7ff\U0001f600 "),
        ]
        for number, (title, text) in enumerate(odd):
            corpus.write(orjson.dumps({"id": f"odd-{number}", "contents": f"{title}\n{text}".strip("\n")}) + b"\n")
    given = {"engine": engine, "corpus": [str(world.corpus)], "cache_folder": str(tmp_path / "cache")}
    if engine != "bm25":
        given["encoder"] = HASHING
    shown = {"top_n": 3, "document_chars": 60}
    here = load_config(SearchToolSettings, data={**given, **shown})
    questions = [orjson.loads(line)["question"] for line in world.questions.read_bytes().splitlines()]
    queries = [*questions, *ODD_QUERIES, "Text without a title", "one line", "ab b c"]
    found = await ask(here, queries)
    async with served(open_index(here)) as url:
        assert await ask(apart(url, **shown), queries) == found
    statuses = [status for status, _ in found]
    assert statuses[: len(questions)] == ["ok"] * len(questions) and "invalid" in statuses
    assert ("empty" in statuses) == (engine == "bm25")


async def outcome_of(settings: SearchToolSettings) -> ToolOutcome:
    async with SearchTool(settings) as tool:
        return await tool.call("red", deadline=FAR)


@pytest.mark.covers("flywheel-7")
async def test_slow_search_service_is_a_timeout(tmp_path: Path) -> None:
    index = HeldIndex(tmp_path, ["red"])
    async with served(index) as url, SearchTool(apart(url, timeout_s=0.2)) as tool:
        index.held = True
        outcome = await tool.call("red", deadline=FAR)
        index.go.release(10)
    assert (outcome.status, outcome.text) == ("timeout", "The search took too long and was stopped.")


@pytest.mark.covers("flywheel-7")
@pytest.mark.parametrize("answer", [(500, {}), (503, {}), None, "hang"])
async def test_search_outage_raises_a_transient_error(
    answer: Answer | str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, clock = Service(answer), ForwardClock(monkeypatch)
    async with serving(service):
        times = {"retry_limit": 1, "request_timeout_s": 60.0}
        search = asyncio.create_task(outcome_of(apart(service.url, timeout_s=200.0, client=times)))
        for num_asked in (1, 2) if answer == "hang" else ():
            await until(lambda num_asked=num_asked: len(service.asked) == num_asked)
            clock.pass_(61.0)
        with pytest.raises(SearchUnavailable) as outage:
            await search
    assert outage.value.retryable and "\n" not in str(outage.value) and len(service.asked) == 2


async def test_refused_search_raises_a_permanent_error() -> None:
    service = Service((422, {"detail": "top_n must be at most 3"}))
    async with serving(service):
        with pytest.raises(ToolError, match="top_n must be at most 3") as refusal:
            await outcome_of(apart(service.url))
    assert not refusal.value.retryable


async def test_second_address_answers_for_the_first() -> None:
    broken, alive = Service(None), Service()
    async with serving(broken, alive):
        assert (await outcome_of(apart(broken.url, alive.url))).text.startswith("Title\nText")


async def test_search_without_hits_is_empty() -> None:
    service = Service((200, [[], []]))
    async with serving(service):
        outcome = await outcome_of(apart(service.url))
    assert (outcome.status, outcome.text) == ("empty", NO_HIT)


@pytest.mark.parametrize(
    "keys",
    [{"corpus": ["a.jsonl"]}, {"index_folder": "a"}, {"engine": "dense"}, {"encoder": {"type": "hashing"}}],
    ids=lambda keys: next(iter(keys)),
)
def test_rejects_services_together_with_a_local_index(keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"a service and also {next(iter(keys))} for an index in this process"):
        apart("http://127.0.0.1:9", **keys)
    assert apart("http://127.0.0.1:9", cache_folder="a").service is not None


async def test_encoder_queries_are_batched(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"id": "1", "contents": "Red\\nred fox"}\n')
    given = {"engine": "dense", "corpus": [str(tmp_path / "corpus.jsonl")], "cache_folder": str(tmp_path)}
    settings = load_config(SearchToolSettings, data={**given, "encoder": HASHING, "num_threads": 1})
    sizes: list[int] = []
    async with SearchTool(settings) as tool:
        index = tool._searcher._index
        rank_batch = index.rank_batch
        index.rank_batch = lambda queries, top_n: sizes.append(len(queries)) or rank_batch(queries, top_n)
        await asyncio.gather(*(tool.call(f"fox {number}", deadline=FAR) for number in range(40)))
    assert sum(sizes) == 40 and len(sizes) <= 4
