"""Measure web search by 64 concurrent rollouts, ten pages each, from local sites that respond after a second.

    python -m benchmarks.search.web_search [--rollouts 64] [--latency 1] [--page-kb 60] [--json]

Sixteen sites (127.0.0.2 to .17) and the search provider run in a process of their own. The rollouts are those of the
engine, with a model in this process that takes no time: each searches once, for ten pages that no other rollout gets.
Fetcher, confined readers, store and record are the product's own, with default settings. Lag is the delay of a 5 ms
sleep on the same event loop. A second pass replays the exported record, without provider and sites.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, web

from benchmarks.parts.figures import Figure, add_json_option, publish
from benchmarks.parts.measuring import KIB, cpu_seconds, memory_kib
from treadle.agent.call_cache import NullCache
from treadle.agent.contract import Task
from treadle.agent.model_types import RolloutLimits
from treadle.agent.rollout import RolloutEngine
from treadle.agent.tools.search import SearchTool
from treadle.agent.tools.search_config import SearchToolSettings
from treadle.agent.trajectory import Trajectory
from treadle.core.config import load_config
from treadle.core.llm.config import Sampling
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.core.runs.run import Run
from treadle.environments.question.episode import QuestionEpisode
from treadle.environments.question.settings import QuestionSettings
from treadle.web.record.stored_entries import WEB_STORE, entries_of
from treadle.web.record.table import write_record
from treadle.web.search import WebSearch
from treadle.web.types import PageEntry

HOSTS = [f"127.0.0.{number}" for number in range(2, 18)]
PAGES = 10
KINDS = 16
PROBE_S = 0.005
SEARCH = "<think>I look it up.</think><search>{}</search>"
ANSWER = "<think>Found.</think><answer>\\boxed{1}</answer>"


def page_of(kind: int, num_bytes: int) -> str:
    """Return a page of about `num_bytes`: paragraphs, links and tables, the same in every call."""
    chooser = random.Random(kind)
    words = ["".join(chooser.choices("etaoinshrdlucm", k=chooser.randint(2, 9))) for _ in range(2_000)]
    parts, size = [f"<html><head><title>Kind {kind}</title></head><body>"], 0
    while size < num_bytes:
        sentences = " ".join(" ".join(chooser.choices(words, k=14)).capitalize() + "." for _ in range(6))
        cells = "".join(f"<td>{word}</td>" for word in chooser.choices(words, k=4))
        link = f'<a href="/{chooser.choice(words)}" class="link">{chooser.choice(words)}</a>'
        parts.append(
            f"<div><h2>{chooser.choice(words)}</h2><p>{sentences} {link}</p><table><tr>{cells}</tr></table></div>"
        )
        size += len(parts[-1])
    return "".join([*parts, "</body></html>"])


def snippet_of(page: str) -> str:
    """Return a sentence from the middle of a page."""
    middle = page.index("<p>", len(page) // 2) + 3
    return page[middle : page.index(".", middle) + 1]


def serve(said: Connection, latency_s: float, num_bytes: int) -> None:
    """Run the sites and the provider; send their port, and serve until any message arrives."""
    asyncio.run(_serve(said, latency_s, num_bytes))


async def _serve(said: Connection, latency_s: float, num_bytes: int) -> None:
    pages = [page_of(kind, num_bytes) for kind in range(KINDS)]
    bodies, snippets = [page.encode() for page in pages], [snippet_of(page) for page in pages]
    requests = {"search": 0, "page": 0}

    async def on_page(request: web.Request) -> web.Response:
        requests["page"] += 1
        await asyncio.sleep(latency_s)
        return web.Response(body=bodies[int(request.match_info["kind"])], content_type="text/html", charset="utf-8")

    async def on_search(request: web.Request) -> web.Response:
        requests["search"] += 1
        await asyncio.sleep(latency_s)
        query, port = request.query["q"], request.url.port
        hits = []
        for number in range(PAGES):
            kind = (int(query.split()[-1]) + number) % KINDS
            url = f"http://{HOSTS[kind]}:{port}/{kind}/{query.replace(' ', '-')}"
            hits.append({"title": f"Kind {kind}", "url": url, "content": snippets[kind]})
        return web.json_response({"query": query, "results": hits})

    async def on_count(_: web.Request) -> web.Response:
        return web.json_response(requests)

    app = web.Application()
    app.add_routes([web.get("/search", on_search), web.get("/count", on_count), web.get("/{kind}/{name}", on_page)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    first = web.TCPSite(runner, HOSTS[0], 0, backlog=1024)
    await first.start()
    port = runner.addresses[0][1]
    for host in HOSTS[1:]:
        await web.TCPSite(runner, host, port, backlog=1024).start()
    said.send(port)
    await asyncio.to_thread(said.recv)
    await runner.cleanup()


class Model:
    """Model that makes one search, then answers, without delay."""

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        """Return the next text; `session` is the question's key."""
        assert isinstance(request.prompt, str)
        found = "</result>" in request.prompt.rpartition("assistant\n")[2]
        text = ANSWER if found else SEARCH.format(f"what is known of {session}")
        return Completion(text, None, "stop", None, 1, 1, "", 0.0, 0)


class TimedSearch(WebSearch):
    """Web search that records the time per page, including waiting and reading, and the number of failed pages."""

    seconds: list[float]
    num_failed = 0

    async def _page(self, url: str, slots: asyncio.Semaphore, deadline: float) -> tuple[PageEntry, bool]:
        started = time.perf_counter()
        page, recorded = await super()._page(url, slots, deadline)
        self.seconds.append(time.perf_counter() - started)
        self.num_failed += page.failure is not None
        return page, recorded


@dataclass(slots=True)
class PassResult:
    """Results of a pass."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    readers_cpu_s: float = 0.0
    peak_mib: float = 0.0
    lags_ms: list[float] = field(default_factory=list)
    page_s: list[float] = field(default_factory=list)
    num_failed: int = 0
    texts: list[str] = field(default_factory=list)


def children() -> list[int]:
    """Return the ids of running child processes."""
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    return [int(pid) for pid in path.read_text().split()]


@contextlib.asynccontextmanager
async def probed(lags_ms: list[float]) -> AsyncIterator[None]:
    """Record the delay of short sleeps for the duration of the block."""

    async def probe() -> None:
        while True:
            due = time.perf_counter() + PROBE_S
            await asyncio.sleep(PROBE_S)
            lags_ms.append(1e3 * (time.perf_counter() - due))

    task = asyncio.create_task(probe())
    try:
        yield
    finally:
        task.cancel()


async def search_all(settings: SearchToolSettings, run: Run, num_rollouts: int, others: Sequence[int]) -> PassResult:
    """Run one pass with all rollouts at once. `others` are child processes that do not belong to it."""
    assert settings.web is not None
    web_search = TimedSearch(settings.web, store=run.store(WEB_STORE), summarized=False)
    web_search.seconds = []
    environment = QuestionSettings.model_validate({"search": settings.model_dump()})
    engine = RolloutEngine(Model(), None, Sampling(), RolloutLimits(max_turns=4), environment.turn_dialect)
    done = PassResult()

    async def roll_out(number: int, tools: dict[str, Any]) -> Trajectory:
        return await engine.roll_out(
            QuestionEpisode(environment, tools),
            Task(str(number), "What is known?"),
            seed=number,
            deadline=asyncio.get_running_loop().time() + environment.rollout_time_s,
            cache=NullCache(),
        )

    async with SearchTool(settings, web=web_search) as tool:
        readers = [pid for pid in children() if pid not in others]
        before = sum(map(cpu_seconds, readers))
        cpu, started = time.process_time(), time.perf_counter()
        async with probed(done.lags_ms):
            made = await asyncio.gather(*(roll_out(number, {tool.name: tool}) for number in range(num_rollouts)))
        done.wall_s, done.cpu_s = time.perf_counter() - started, time.process_time() - cpu
        done.readers_cpu_s = sum(map(cpu_seconds, readers)) - before
    done.peak_mib = memory_kib("VmHWM") / KIB
    done.page_s, done.num_failed = web_search.seconds, web_search.num_failed
    done.texts = [trajectory.text for trajectory in made]
    if any(trajectory.status != "answered" for trajectory in made):
        raise SystemExit("a rollout ended without an answer")
    return done


async def counted(port: int) -> dict[str, int]:
    """Return the numbers of requests to provider and sites so far."""
    async with ClientSession() as session, session.get(f"http://{HOSTS[0]}:{port}/count") as response:
        found: dict[str, int] = await response.json()
        return found


def settings_of(web_table: dict[str, Any]) -> SearchToolSettings:
    """Return the settings of the search tool with these web settings."""
    return load_config(SearchToolSettings, data={"web": {"top_n": PAGES, **web_table}})


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share of the values lies."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


async def measure(folder: Path, port: int, num_rollouts: int) -> list[Figure]:
    """Measure all figures."""
    run = Run.create(folder / "root", "benchmark", {}, {})
    recording = settings_of(
        {
            "provider": {"type": "searxng", "url": f"http://{HOSTS[0]}:{port}", "max_queries_per_s": 1000},
            "fetch": {"allowed_networks": ["127.0.0.0/8"]},
        }
    )
    assert recording.web is not None
    others = children()
    live = await search_all(recording, run, num_rollouts, others)
    asked = await counted(port)
    entries = [(entry, None) for entry in entries_of(run.store(WEB_STORE))]
    ref = write_record(run.storage, entries, made_by="benchmark", work=run.key("work/web_record"))
    record = Path(run.storage.location(ref.folder))
    replay = await search_all(settings_of({"mode": "replay", "recorded_in": record}), run, num_rollouts, others)
    again = sum((await counted(port)).values()) - sum(asked.values())
    in_time = sum(seconds <= recording.web.page_timeout_s for seconds in live.page_s) - live.num_failed
    return [
        Figure(name="pages fetched", value=asked["page"], unit="pages"),
        Figure(name="rollouts with their search: wall", value=live.wall_s, unit="s"),
        Figure(name="pages per second", value=len(live.page_s) / live.wall_s, unit="pages/s"),
        Figure(name="time of a page, waiting included: p50", value=percentile(live.page_s, 0.5), unit="s"),
        Figure(name="time of a page, waiting included: p99", value=percentile(live.page_s, 0.99), unit="s"),
        Figure(name="pages read in time", value=100 * in_time / len(live.page_s), unit="%", at_least=100.0),
        Figure(name="lag of the event loop: p50", value=percentile(live.lags_ms, 0.5), unit="ms"),
        Figure(name="lag of the event loop: p99", value=percentile(live.lags_ms, 0.99), unit="ms", at_most=50.0),
        Figure(name="lag of the event loop: most", value=max(live.lags_ms), unit="ms"),
        Figure(name="CPU of the process", value=live.cpu_s, unit="s"),
        Figure(name="CPU of the readers", value=live.readers_cpu_s, unit="s"),
        Figure(name="peak memory of the process", value=live.peak_mib, unit="MiB"),
        Figure(name="replay: wall", value=replay.wall_s, unit="s"),
        Figure(
            name="replay: lag of the event loop: p99", value=percentile(replay.lags_ms, 0.99), unit="ms", at_most=50.0
        ),
        Figure(name="replay: requests", value=again, unit="requests", at_most=0.0),
        Figure(name="replay: rollouts with another text", value=_unlike(live, replay), unit="rollouts", at_most=0.0),
    ]


def _unlike(one: PassResult, other: PassResult) -> int:
    return sum(left != right for left, right in zip(one.texts, other.texts, strict=True))


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=64)
    parser.add_argument("--latency", type=float, default=1.0, metavar="SECONDS")
    parser.add_argument("--page-kb", type=int, default=60)
    add_json_option(parser)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    sites = context.Process(target=serve, args=(there, options.latency, 1_000 * options.page_kb), daemon=True)
    sites.start()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TREADLE_CACHE"] = str(Path(folder) / "cache")
        figures = asyncio.run(measure(Path(folder), here.recv(), options.rollouts))
    here.send(None)
    sites.join()
    publish(figures, options.json)


if __name__ == "__main__":
    main()
