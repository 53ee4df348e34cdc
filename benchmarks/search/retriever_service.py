"""Measure the retrieval service under load, compared with plain servers over the same corpus on the same core.

    python -m benchmarks.search.retriever_service [--documents 100000] [--rate 700] [--seconds 20] [--requests 5000]

Each server runs alone on one core (the last one), the client on the others. Open loop: searches are sent at the given
rate regardless of responses, and each one's latency counts from when it was due, so the figures show a server that
falls behind. Closed loop: 32 searches are always in flight. Queries are distinct questions of the
sample world, so no result comes from a cache. The soak sends `--soak` further searches and measures the service's
memory.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import orjson

from benchmarks.parts.figures import Figure, add_json_option, publish

HERE = Path(__file__).parent
TOP_N = 4
IN_FLIGHT = 32
TREADLE = "treadle"


@dataclass(frozen=True, slots=True)
class SearchServer:
    """A server under load."""

    url: str
    pid: int

    def memory_mib(self) -> float:
        """Return anonymous resident memory; pages that the index maps from files are not counted."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) / 1024
        raise ValueError("no RssAnon in /proc")


@contextlib.contextmanager
def serving(kind: str, corpus: Path) -> Iterator[SearchServer]:
    """Run a server of a kind on the last core; yield once it is ready."""
    core = str((os.cpu_count() or 1) - 1)
    if kind == TREADLE:
        command = [str(Path(sys.executable).with_name("treadle")), "retriever", "serve", "--corpus", str(corpus)]
        command += ["--port", "0"]
    else:
        command = [str(HERE.parent / "parts" / "plain_search_server.py"), kind.removeprefix("plain-"), str(corpus)]
    with tempfile.TemporaryFile("w+") as said:
        child = subprocess.Popen(["taskset", "-c", core, sys.executable, *command], stdout=said, stderr=said)
        try:
            yield SearchServer(_url_of(child, said.fileno()), child.pid)
        finally:
            child.terminate()
            child.wait()


def _url_of(child: subprocess.Popen[bytes], output: int) -> str:
    """Wait until the server reports its address, and return its URL."""
    while child.poll() is None:
        text = os.pread(output, 100_000, 0).decode()
        if "ready:" in text:
            return text.split("listening on ")[1].split(" ")[0]
        if text.strip().isdigit():
            return f"http://127.0.0.1:{text.strip()}"
        time.sleep(0.05)
    raise SystemExit(f"the server ended: {os.pread(output, 10_000, 0).decode()}")


def make_queries(folder: Path, documents: int, count: int) -> tuple[Path, list[str]]:
    """Return a world's corpus, and distinct questions over it."""
    from treadle.demo.world_files import write_world

    world = write_world(folder, documents=documents, questions=min(count, documents // 10), heldout_questions=0)
    questions = [orjson.loads(line)["question"] for line in world.questions.read_bytes().splitlines()]
    shuffled = random.Random(0)
    # The number makes a question distinct, and a little longer.
    return world.corpus, [f"{shuffled.choice(questions)} ({number})" for number in range(count)]


async def ask(session: aiohttp.ClientSession, url: str, query: str) -> int:
    """Send one search and return the status of the response."""
    body = orjson.dumps({"query": query, "top_n": TOP_N})
    async with session.post(f"{url}/search", data=body, headers={"Content-Type": "application/json"}) as response:
        await response.read()
        return response.status


async def open_loop(url: str, queries: Sequence[str], rate: float) -> tuple[list[float], int]:
    """Send searches with Poisson arrivals; return seconds since each was due, and the number refused or failed."""
    arrivals = random.Random(1)
    times: list[float] = []
    failed = 0

    async def one(session: aiohttp.ClientSession, query: str, due: float) -> None:
        nonlocal failed
        try:
            failed += await ask(session, url, query) != 200
        except aiohttp.ClientError:
            failed += 1
        times.append(time.perf_counter() - due)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        tasks = []
        due = time.perf_counter()
        for query in queries:
            due += arrivals.expovariate(rate)
            if (early := due - time.perf_counter()) > 0:
                await asyncio.sleep(early)
            tasks.append(asyncio.create_task(one(session, query, due)))
        await asyncio.gather(*tasks)
    return times, failed


async def closed_loop(url: str, queries: Sequence[str]) -> float:
    """Return searches per second with IN_FLIGHT in flight."""
    left = iter(queries)

    async def work(session: aiohttp.ClientSession) -> None:
        for query in left:
            assert await ask(session, url, query) == 200

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        started = time.perf_counter()
        await asyncio.gather(*(work(session) for _ in range(IN_FLIGHT)))
        return len(queries) / (time.perf_counter() - started)


def measure(options: argparse.Namespace, folder: Path) -> list[Figure]:
    """Measure all servers in turn."""
    num_open = int(options.rate * options.seconds)
    corpus, queries = make_queries(folder, options.documents, max(num_open, options.requests, options.soak))
    figures: list[Figure] = []
    rates: dict[str, float] = {}
    for kind in (TREADLE, "plain-treadle", "plain-bm25s"):
        with serving(kind, corpus) as server:
            warm = queries[:200]
            asyncio.run(closed_loop(server.url, [f"{query} warm" for query in warm]))
            rates[kind] = asyncio.run(closed_loop(server.url, queries[: options.requests]))
            if kind == TREADLE:
                figures += open_figures(server, [f"{query} open" for query in queries[:num_open]], options.rate)
                figures += soak_figures(server, queries[: options.soak])
    figures += [Figure(name=f"closed loop, {kind}", value=rate, unit="searches/s") for kind, rate in rates.items()]
    figures.append(Figure(name="closed loop relative to plain server", value=rates[TREADLE] / rates["plain-treadle"]))
    ratio = rates[TREADLE] / rates["plain-bm25s"]
    figures.append(Figure(name="closed loop relative to plain server over bm25s", value=ratio, at_least=3.0))
    return figures


def open_figures(server: SearchServer, queries: Sequence[str], rate: float) -> list[Figure]:
    """Measure latencies at a fixed arrival rate."""
    times, failed = asyncio.run(open_loop(server.url, queries, rate))
    cuts = statistics.quantiles(times, n=100)
    name = f"open loop at {rate:g}/s"
    return [
        Figure(name=f"{name}: p50", value=1000 * cuts[49], unit="ms"),
        Figure(name=f"{name}: p99", value=1000 * cuts[98], unit="ms", at_most=50.0),
        Figure(name=f"{name}: refused or failed", value=float(failed), unit="searches", at_most=0.0),
    ]


def soak_figures(server: SearchServer, queries: Sequence[str]) -> list[Figure]:
    """Measure memory growth in the second half of many searches, after caches have filled."""
    half = len(queries) // 2
    asyncio.run(closed_loop(server.url, [f"{query} first" for query in queries[:half]]))
    before = server.memory_mib()
    asyncio.run(closed_loop(server.url, [f"{query} second" for query in queries[half:]]))
    grown = server.memory_mib() - before
    return [
        Figure(name=f"memory after {half} searches", value=before, unit="MiB"),
        Figure(name=f"growth over {len(queries) - half} more", value=grown, unit="MiB", at_most=64.0),
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--rate", type=float, default=700.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--requests", type=int, default=5_000)
    parser.add_argument("--soak", type=int, default=100_000)
    add_json_option(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TREADLE_CACHE"] = f"{folder}/cache"
        publish(measure(options, Path(folder)), options.json)


if __name__ == "__main__":
    main()
