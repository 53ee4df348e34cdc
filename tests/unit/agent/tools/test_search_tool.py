"""The search tool as the rollout engine uses it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import orjson
import pytest
from support.servers.own_clock import ForwardClock

from treadle.agent.tools.search import EMPTY_QUERY, NO_HIT, SearchTool, SearchToolSettings
from treadle.core.config import semantic_dump, validate
from treadle.core.errors import ConfigError, DataError
from treadle.retriever.index import Hit

FAR = 1e12


def settings_for(folder: Path, **settings: object) -> SearchToolSettings:
    rows = [
        {"id": "1", "title": "Vorna", "text": "Vorna is a town on the Ilme."},
        {"id": "2", "title": "Ilme", "text": "The Ilme is a river. " + "It is long. " * 200},
    ]
    path = folder / "corpus.jsonl"
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return validate(SearchToolSettings, {"corpus": path, "cache_folder": folder / "cache", **settings})


async def test_documents_are_shown_with_title_truncated_and_joined(tmp_path: Path) -> None:
    async with SearchTool(settings_for(tmp_path, document_chars=60)) as tool:
        outcome = await tool.call(" town on the Ilme\n", deadline=FAR)
    long = "Ilme\nThe Ilme is a river. " + "It is long. " * 200
    assert outcome.status == "ok"
    assert outcome.text == f"Vorna\nVorna is a town on the Ilme.\n\n{long[:60]}..."
    assert outcome.seconds >= 0


@pytest.mark.parametrize(("limit", "mark"), [(33, "..."), (34, ""), (35, "")])
async def test_document_gets_an_ellipsis_only_if_truncated(tmp_path: Path, limit: int, mark: str) -> None:
    contents = "Vorna\nVorna is a town on the Ilme."
    assert len(contents) == 34
    async with SearchTool(settings_for(tmp_path, document_chars=limit)) as tool:
        outcome = await tool.call("town", deadline=FAR)
    assert outcome.text == contents[:limit] + mark


async def test_at_most_top_n_documents_are_shown(tmp_path: Path) -> None:
    async with SearchTool(settings_for(tmp_path, top_n=1)) as tool:
        outcome = await tool.call("Vorna town Ilme", deadline=FAR)
    assert outcome.text == "Vorna\nVorna is a town on the Ilme."


@pytest.mark.covers("flywheel-7")
@pytest.mark.parametrize("query", ["", "  \n\t"])
async def test_empty_query_is_invalid(tmp_path: Path, query: str) -> None:
    async with SearchTool(settings_for(tmp_path)) as tool:
        outcome = await tool.call(query, deadline=FAR)
    assert (outcome.status, outcome.text) == ("invalid", EMPTY_QUERY)


@pytest.mark.parametrize("query", ["zzz", "the", "\ud800\0", "</search>"])
async def test_query_without_a_hit_is_empty(tmp_path: Path, query: str) -> None:
    async with SearchTool(settings_for(tmp_path)) as tool:
        outcome = await tool.call(query, deadline=FAR)
    assert (outcome.status, outcome.text) == ("empty", NO_HIT)


class Stuck:
    """A searcher whose worker threads hang until released."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.hangs = asyncio.Event()

    async def open(self) -> None: ...

    async def search(self, query: str, top_n: int, *, deadline: float) -> Sequence[Hit]:
        if query == "hang":
            self.hangs.set()
            async with asyncio.timeout_at(deadline):
                await asyncio.to_thread(self.release.wait)
        return [Hit("1", "T", query, 1.0)]

    async def close(self) -> None:
        self.release.set()


@pytest.mark.covers("flywheel-7")
async def test_hanging_search_times_out_and_blocks_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = Stuck()
    async with SearchTool(SearchToolSettings(timeout_s=60.0), stuck) as tool:
        hanging = asyncio.create_task(tool.call("hang", deadline=FAR))
        await stuck.hangs.wait()
        quick = [await tool.call(f"q{number}", deadline=FAR) for number in range(20)]
        assert not hanging.done()
        ForwardClock(monkeypatch).pass_(61.0)
        outcome = await hanging
    assert [answer.text for answer in quick] == [f"T\nq{number}" for number in range(20)]
    assert (outcome.status, outcome.text) == ("timeout", "The search took too long and was stopped.")


async def test_queries_run_outside_the_event_loop_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[str] = set()
    tool = SearchTool(settings_for(tmp_path, num_threads=2))
    async with tool:
        index = tool._searcher._index
        search = index.search
        monkeypatch.setattr(
            index, "search", lambda *args: threads.add(threading.current_thread().name) or search(*args)
        )
        outcomes = await asyncio.gather(*(tool.call("Vorna", deadline=FAR) for _ in range(40)))
    assert {outcome.status for outcome in outcomes} == {"ok"}
    assert threads
    assert all(name.startswith("search") for name in threads)
    assert len(threads) <= 2


async def test_closed_tool_can_be_reopened(tmp_path: Path) -> None:
    tool = SearchTool(settings_for(tmp_path))
    for _ in range(2):
        async with tool:
            assert (await tool.call("Vorna", deadline=FAR)).status == "ok"


def test_corpus_is_identified_by_content_not_by_location(tmp_path: Path) -> None:
    settings = settings_for(tmp_path).with_digests()
    (tmp_path / "moved.jsonl").write_bytes((tmp_path / "corpus.jsonl").read_bytes())
    moved = validate(SearchToolSettings, {"corpus": [tmp_path / "moved.jsonl"]}).with_digests()
    assert semantic_dump(settings) == semantic_dump(moved)
    (tmp_path / "moved.jsonl").write_bytes(b'{"id": "1", "contents": "other"}\n')
    assert semantic_dump(moved.with_digests()) != semantic_dump(settings)


def test_missing_corpus_is_named_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the search tool has no corpus"):
        SearchToolSettings().with_digests()
    with pytest.raises(DataError, match=r"none.jsonl does not exist"):
        SearchToolSettings(corpus=(tmp_path / "none.jsonl",)).with_digests()


async def test_tool_that_cannot_open_leaves_no_thread_behind(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    (tmp_path / "corpus.jsonl").write_bytes(b"{")
    tool = SearchTool(settings)
    with pytest.raises(DataError, match="row 1"):
        await tool.__aenter__()
    assert tool._searcher._threads is None
