"""Search routes: the corpus, the web, or both; decided by settings or by the question."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from treadle.agent.contract import EpisodeOptions, Observation, StepContext, Task
from treadle.agent.dialects.tags import TOOL_DIALECT
from treadle.agent.tools.outcome import NOT_ON_RECORD, CallContext
from treadle.agent.tools.search import CORPUS_TOO_SLOW, NO_HIT, SearchTool
from treadle.agent.tools.search_config import SearchToolSettings
from treadle.agent.tools.summarizer import Summarizer, Summary
from treadle.core.config import canonical_json, semantic_dump, validate
from treadle.core.errors import ArtifactError, ConfigError
from treadle.core.store.storage import LocalStorage
from treadle.core.work_clock import timed_work
from treadle.environments.question.episode import QuestionEpisode
from treadle.environments.question.settings import QuestionSettings
from treadle.environments.question.tools import make_tools
from treadle.retriever.client import SearchUnavailable
from treadle.retriever.index import Hit
from treadle.rl.training.engine_environments import local_environment
from treadle.web.record.table import write_record
from treadle.web.types import RecordMiss, WebSearchResult

FAR = 1e12
WEB = {"provider": {"type": "searxng", "url": "http://127.0.0.1:9"}}
LOCAL = {"corpus": ["corpus.jsonl"]}


class Corpus:
    """A corpus with one document, and none for the query `nothing`; slow or unavailable if configured."""

    def __init__(self, state: str = "ok") -> None:
        self.state = state
        self.asked = 0
        self.opened = False

    async def open(self) -> None:
        self.opened = True

    async def search(self, query: str, top_n: int, *, deadline: float) -> Sequence[Hit]:
        self.asked += 1
        if self.state == "late":
            raise TimeoutError
        if self.state == "down":
            raise SearchUnavailable("no corpus")
        return [] if query == "nothing" else [Hit("1", "Corpus", "local text", 1.0)]

    async def close(self) -> None:
        self.opened = False


class Web:
    """A web with one page, but for the query `nothing`; `endless` it never answers, `slow` it takes a while."""

    def __init__(self, state: str = "ok") -> None:
        self.state = state
        self.asked = 0
        self.opened = self.cancelled = False

    async def open(self) -> None:
        self.opened = True

    async def search(self, query: str, *, deadline: float) -> WebSearchResult:
        self.asked += 1
        if self.state == "down":
            raise SearchUnavailable("no web")
        if self.state == "endless":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled = True
                raise
        if self.state == "slow":
            await asyncio.sleep(0.06)
        if query == "nothing":
            return WebSearchResult("", (), ("n",), recorded=False)
        return WebSearchResult("web text", ("web document",), ("s", "p"), recorded=True)

    async def wait_recorded(self) -> None: ...

    async def close(self) -> None:
        self.opened = False


def settings(**keys: Any) -> SearchToolSettings:
    return validate(SearchToolSettings, keys)


def context(route: str | None) -> CallContext:
    return CallContext("Who?", (), 1, None, route)


async def call(
    corpus: Corpus, web: Web, route: str | None = None, query: str = "q", deadline: float = FAR, **keys: Any
) -> Any:
    tool = SearchTool(settings(**{**LOCAL, "web": WEB, **keys}), corpus, web=web)
    async with tool:
        assert corpus.opened and web.opened
        outcome = await tool.call(query, deadline=deadline, context=context(route))
    assert not corpus.opened and not web.opened
    return outcome


@pytest.mark.parametrize(
    ("given", "auto", "forced"),
    [
        ({**LOCAL}, ["local"] * 4, {"local": "local"}),
        ({"service": {"endpoints": [{"url": "http://127.0.0.1:9"}]}, "web": WEB}, ["local", "web", "both", "web"], {}),
        ({"index_folder": "i", "web": WEB}, ["local", "web", "both", "web"], {}),
        ({"web": WEB}, ["web"] * 4, {"web": "web"}),
        ({**LOCAL, "web": WEB}, ["local", "web", "both", "web"], dict.fromkeys(("local", "web", "both"), "")),
    ],
)
def test_search_route_selects_the_source(given: dict[str, Any], auto: list[str], forced: dict[str, str]) -> None:
    asked = ("local", "web", "both", None)
    assert [settings(**given).route_of(route) for route in asked] == auto
    for route in forced:
        assert [settings(**given, route=route).route_of(one) for one in asked] == [route] * 4


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({**LOCAL, "route": "web"}, 'route = "web" needs the table search.web'),
        ({**LOCAL, "route": "both"}, 'route = "both" needs the table search.web'),
        ({"web": WEB, "route": "both"}, 'route = "both" needs a corpus'),
        ({"web": WEB, "route": "local"}, 'route = "local" needs a corpus'),
    ],
)
def test_missing_search_source_is_refused(given: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        settings(**given)


async def test_both_sources_are_searched_and_shown_in_order() -> None:
    corpus, web = Corpus(), Web()
    outcome = await call(corpus, web, "both")
    assert (outcome.status, outcome.text) == ("ok", "Corpus\nlocal text\n\nweb text")
    assert (outcome.sources, outcome.cached, corpus.asked, web.asked) == (("s", "p"), True, 1, 1)


@pytest.mark.parametrize(
    ("state", "query", "status", "text", "note"),
    [
        ("late", "q", "ok", "web text", CORPUS_TOO_SLOW),
        ("late", "nothing", "empty", NO_HIT, CORPUS_TOO_SLOW),
        ("ok", "nothing", "empty", NO_HIT, ""),
    ],
)
async def test_other_source_is_shown_if_one_has_no_hit(
    state: str, query: str, status: str, text: str, note: str
) -> None:
    outcome = await call(Corpus(state), Web(), "both", query)
    assert (outcome.status, outcome.text, outcome.note) == (status, text, note)


@pytest.mark.parametrize(("corpus", "web", "what"), [("down", "endless", "no corpus"), ("ok", "down", "no web")])
async def test_rollout_stays_pending_if_one_of_both_sources_is_down(corpus: str, web: str, what: str) -> None:
    other = Web(web)
    with pytest.raises(SearchUnavailable, match=what):
        await call(Corpus(corpus), other, "both")
    assert other.cancelled == (web == "endless")


@pytest.mark.parametrize("route", ["web", "both"])
async def test_web_search_takes_no_rollout_time_and_is_not_ended_by_it(route: str) -> None:
    with timed_work() as clock:
        outcome = await call(Corpus(), Web("slow"), route, deadline=clock.time() + 0.02)
        assert clock.time() < asyncio.get_running_loop().time() - 0.05
    assert outcome.status == "ok" and "web text" in outcome.text


async def test_forced_route_opens_only_one_source() -> None:
    for route, kind in (("web", "web"), ("local", "local")):
        tool = SearchTool(settings(**LOCAL, web=WEB, route=route), web=Web() if kind == "web" else None)
        assert (tool._searcher is None) == (kind == "web")
    (tool,) = make_tools(QuestionSettings.model_validate({"python": {"enabled": False}, "search": {**LOCAL}}))
    assert isinstance(tool, SearchTool) and tool._web is None


class Reading(Summarizer):
    """Notes what it is given."""

    def __init__(self) -> None:
        self.documents: list[Sequence[str]] = []

    async def summarize(
        self, query: str, documents: Sequence[str], context: CallContext, *, deadline: float, from_web: bool
    ) -> Summary:
        assert from_web
        self.documents.append(documents)
        return Summary("", "said nothing", 3, 4)


async def test_summarizer_reads_documents_of_both_sources_and_notes_are_joined() -> None:
    reader = Reading()
    tool = SearchTool(settings(**LOCAL, web=WEB), Corpus(), reader, Web())
    late = SearchTool(settings(**LOCAL, web=WEB), Corpus("late"), reader, Web())
    async with tool, late:
        outcome = await tool.call("q", deadline=FAR, context=context("both"))
        other = await late.call("q", deadline=FAR, context=context("both"))
    assert reader.documents == [("Corpus\nlocal text", "web document"), ("web document",)]
    assert (outcome.text, outcome.note, outcome.sources) == (
        "Corpus\nlocal text\n\nweb text",
        "said nothing",
        ("s", "p"),
    )
    assert other.note == f"{CORPUS_TOO_SLOW}; said nothing" and (other.prompt_tokens, other.completion_tokens) == (3, 4)


async def test_call_gets_the_question_route_and_its_sources_survive_the_journal() -> None:
    tool = SearchTool(settings(**LOCAL, web=WEB), Corpus(), web=Web())
    episode = QuestionEpisode(QuestionSettings(), {"search": tool})
    await episode.reset(Task("k", "Who?", search="both"), EpisodeOptions())
    turn = TOOL_DIALECT.read("<search>q</search>", 0, "stop")
    async with tool:
        observation = await episode.step(turn, StepContext(FAR))
    assert [message.text for message in observation.messages] == ["<result>Corpus\nlocal text\n\nweb text</result>"]
    assert observation.calls[0].sources == ("s", "p")
    assert Observation.from_json(observation.to_json()) == observation


def environment(**search: Any) -> QuestionSettings:
    return QuestionSettings.model_validate({"search": search})


def test_web_search_changes_the_environment_digest() -> None:
    plain = environment(**LOCAL)
    switched_off = QuestionSettings.model_validate({"search": {**LOCAL, "web": WEB, "enabled": False}})
    assert plain.digest() != environment(**LOCAL, web=WEB).digest()
    assert plain.searches_web is switched_off.searches_web is False


def test_record_is_identified_by_content_not_by_location(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    folder = tmp_path / write_record(storage, [], made_by="test", work="work").folder
    moved = folder.rename(tmp_path / "moved")
    first = settings(web={"mode": "replay", "recorded_in": moved}).with_digests()
    again = settings(web={"mode": "replay", "recorded_in": moved.rename(tmp_path / "again")}).with_digests()
    assert first.web is not None and first.web.record_digest == folder.name
    assert semantic_dump(first) == semantic_dump(again)
    with pytest.raises(ArtifactError, match="no web record at .*recorded_in=<folder>"):
        settings(web={"mode": "replay", "recorded_in": tmp_path / "none"}).with_digests()
    assert settings(web={**WEB, "mode": "refresh", "recorded_in": tmp_path / "none"}).with_digests()
    elsewhere = {"service": {"endpoints": [{"url": "http://127.0.0.1:9"}]}, "route": "local"}
    assert settings(**elsewhere, web={"mode": "replay", "recorded_in": tmp_path / "none"}).with_digests()


def test_web_search_needs_no_corpus() -> None:
    assert settings(web=WEB).with_digests() == settings(web=WEB)
    with pytest.raises(ConfigError, match="the search tool has no corpus"):
        settings().with_digests()


def web_environment(**changes: Any) -> QuestionSettings:
    return environment(web={**WEB, **changes})


def test_web_origin_is_in_fingerprints_but_not_in_the_environment_digest(tmp_path: Path) -> None:
    recorded = web_environment()
    brave = {"type": "brave", "api_key_envs": ["K"]}
    others = [
        web_environment(mode="refresh"),
        web_environment(mode="replay", recorded_in="x", record_digest="0" * 16),
        web_environment(max_age_days=3),
        web_environment(failure_max_age_hours=1),
        web_environment(provider=brave),
        web_environment(page_timeout_s=5),
        web_environment(max_page_bytes=5),
    ]
    assert {other.digest() for other in others} == {recorded.digest()}
    assert len({canonical_json(semantic_dump(one)) for one in (recorded, *others)}) == len(others) + 1
    shown = [web_environment(**{name: 3}) for name in ("top_n", "max_chars", "page_chars", "window_chars")]
    assert len({one.digest() for one in (recorded, *shown, web_environment(pages=False))}) == 6


def test_settings_irrelevant_to_a_mode_do_not_change_the_run() -> None:
    def dump(mode: str, **changes: Any) -> Any:
        return semantic_dump(settings(web={"recorded_in": "record", "mode": mode, **changes}))

    ages = {"max_age_days": 3, "failure_max_age_hours": 1}
    asking = {**WEB, "page_timeout_s": 5, "max_page_bytes": 5}
    assert dump("replay", **ages, **asking) == dump("replay")
    assert dump("replay", record_digest="0" * 16) != dump("replay")
    assert dump("refresh", **WEB, **ages, record_digest="0" * 16) == dump("refresh", **WEB)
    assert dump("refresh", **asking) != dump("refresh", **WEB)
    assert dump("record", **WEB, **ages) != dump("record", **WEB)


@pytest.mark.parametrize(("route", "text", "status"), [("web", NO_HIT, "empty"), ("both", "Corpus\nlocal text", "ok")])
async def test_unrecorded_replay_search_is_empty_with_a_note_if_configured(route: str, text: str, status: str) -> None:
    class WebWithoutRecord(Web):
        async def search(self, query: str, *, deadline: float) -> WebSearchResult:
            raise RecordMiss("the record has no search for 'q'")

    keys = settings(**LOCAL, web=WEB, route=route)
    async with SearchTool(keys, Corpus(), web=WebWithoutRecord(), misses_are_empty=True) as tool:
        outcome = await tool.call("q", deadline=FAR)
    assert (outcome.status, outcome.text, outcome.note) == (status, text, NOT_ON_RECORD)
    async with SearchTool(keys, Corpus(), web=WebWithoutRecord()) as tool:
        with pytest.raises(RecordMiss):
            await tool.call("q", deadline=FAR)


def test_training_requires_an_explicit_route_and_a_replayed_web(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    replay = {"mode": "replay", "recorded_in": "record"}
    with pytest.raises(ConfigError, match=r'route = "auto": .* set local, web or both'):
        local_environment(environment(**LOCAL, web=replay))
    assert local_environment(environment(**LOCAL, web=replay, route="both"))["search"]["route"] == "both"
    assert local_environment(environment(**LOCAL, web=WEB, route="local"))["search"]["route"] == "local"
    local = local_environment(environment(web=replay))
    assert local["search"]["web"]["recorded_in"] == str(tmp_path / "record")
    far = local_environment(environment(web={**replay, "recorded_in": "s3://bucket/record"}))
    assert far["search"]["web"]["recorded_in"] == "s3:/bucket/record"
    assert QuestionSettings.model_validate(local).digest() == environment(web=replay).digest()
