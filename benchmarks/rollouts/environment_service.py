"""Measure what the environment service adds to a step, and what an instance takes.

    python -m benchmarks.rollouts.environment_service [--instances 200] [--seconds 30] [--held 4000]

Open loop: each of many instances with a process of its own, of an environment that does nothing, steps once a second,
at times spread over the second, whatever the earlier steps take. A step's latency counts from when it was due. What the
service adds is that beyond a bare route of the same framework, which gets the same requests in the same run. Private
memory is that of the process alone (Private_Clean + Private_Dirty of smaps_rollup). Closed loop: 32 steps are always
in flight, next to the bare route. Held: instances of `ledger` in the service's own process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import orjson

from benchmarks.parts.figures import Figure, add_json_option, publish
from benchmarks.parts.measuring import memory_kib

PARTS = Path(__file__).parents[1] / "parts"
NOOP = f"{PARTS / 'noop_environment.py'}:Noop"
IN_FLIGHT = 32
JSON = {"Content-Type": "application/json"}
ACTION = {"role": "assistant", "content": "look up the balance"}


@contextlib.contextmanager
def serving(*command: str) -> Iterator[tuple[str, int]]:
    """Run a server; yield its URL and process id once it is ready."""
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        line = child.stdout.readline()
        found = re.search(r"http://[\d.]+:(\d+)|^(\d+)$", line.strip())
        if found is None:
            raise SystemExit("the server ended")
        try:
            yield f"http://127.0.0.1:{found[1] or found[2]}", child.pid
        finally:
            child.terminate()


def service(kind: str, *options: str) -> contextlib.AbstractContextManager[tuple[str, int]]:
    """Run the service over one type."""
    return serving(
        str(Path(sys.executable).with_name("treadle")), "environment", "serve", kind, "--port", "0", *options
    )


async def post(session: aiohttp.ClientSession, url: str, body: object) -> object:
    """Send a request and return its data."""
    async with session.post(url, data=orjson.dumps(body), headers=JSON) as response:
        raw = await response.read()
        if response.status != 200:
            raise SystemExit(f"{response.status}: {raw.decode()}")
        return orjson.loads(raw)["data"]


async def created(session: aiohttp.ClientSession, url: str, count: int) -> tuple[list[str], float]:
    """Create instances, 16 at a time; return their ids and how long it took."""
    (task_id, *_) = await post(session, f"{url}/get_env_profile", {})
    names = [f"instance-{number}" for number in range(count)]
    left, began = iter(names), time.perf_counter()

    async def work() -> None:
        for name in left:
            await post(session, f"{url}/create", {"task_id": task_id, "instance_id": name})

    await asyncio.gather(*(work() for _ in range(16)))
    return names, time.perf_counter() - began


async def open_loop(session: aiohttp.ClientSession, url: str, names: list[str], seconds: int) -> list[float]:
    """Step every instance once a second; return the latency of each step."""
    times: list[float] = []

    async def one(name: str, number: int, due: float) -> None:
        body = {"instance_id": name, "messages": ACTION, "request_id": f"{name}.{number}"}
        await post(session, f"{url}/step", body)
        times.append(time.perf_counter() - due)

    tasks = []
    began = time.perf_counter() + 0.1
    for number in range(seconds * len(names)):
        due = began + number / len(names)
        if (early := due - time.perf_counter()) > 0:
            await asyncio.sleep(early)
        tasks.append(asyncio.create_task(one(names[number % len(names)], number, due)))
    await asyncio.gather(*tasks)
    return times


async def closed_loop(session: aiohttp.ClientSession, url: str, names: list[str], count: int) -> float:
    """Return steps per second with IN_FLIGHT in flight, each on an instance of its own."""
    left = iter(range(count))

    async def work(name: str) -> None:
        for _ in left:
            await post(session, f"{url}/step", {"instance_id": name, "messages": ACTION})

    began = time.perf_counter()
    await asyncio.gather(*(work(name) for name in names[:IN_FLIGHT]))
    return count / (time.perf_counter() - began)


def private_mib(pid: int) -> float:
    """Return the private memory of a process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


async def measure_processes(url: str, options: argparse.Namespace) -> list[Figure]:
    """Measure instances with processes."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        names, took_s = await created(session, url, options.instances)
        times = await open_loop(session, url, names, options.seconds)
        async with session.get(f"{url}/instances") as response:
            memory = [private_mib(one["pid"]) for one in await response.json()]
        rate = await closed_loop(session, url, names, options.steps)
    cuts = statistics.quantiles(times, n=100)
    return [
        Figure(name="instances with a process created per second", value=len(names) / took_s),
        Figure(name="open loop: steps per second", value=float(len(names))),
        Figure(name="open loop: p50 of a step", value=1000 * cuts[49], unit="ms"),
        Figure(name="open loop: p95 of a step", value=1000 * cuts[94], unit="ms"),
        Figure(name="private memory of an instance: mean", value=statistics.mean(memory), unit="MiB"),
        Figure(name="private memory of an instance: most", value=max(memory), unit="MiB", at_most=12.0),
        Figure(name="closed loop: steps per second", value=rate),
    ]


async def measure_bare(url: str, options: argparse.Namespace) -> tuple[float, float]:
    """Return p95 of the bare route in the open loop, in ms, and its closed-loop rate."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        names = [f"instance-{number}" for number in range(max(IN_FLIGHT, options.instances))]
        times = await open_loop(session, url, names[: options.instances], options.seconds)
        rate = await closed_loop(session, url, names, options.steps)
    return 1000 * statistics.quantiles(times, n=100)[94], rate


async def measure_held(url: str, pid: int, options: argparse.Namespace) -> list[Figure]:
    """Measure instances in the service's own process."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=64)) as session:
        (task_id, *_) = await post(session, f"{url}/get_env_profile", {})
        for number in range(64):  # what is loaded and kept at first use belongs to no instance
            body = {"task_id": task_id, "instance_id": f"first-{number}"}
            await post(session, f"{url}/create", body)
        before = memory_kib("VmRSS", pid)
        names, _ = await created(session, url, options.held)
        for name in names:
            body = {"instance_id": name, "messages": ACTION, "request_id": "0"}
            await post(session, f"{url}/step", body)
        each = (memory_kib("VmRSS", pid) - before) / len(names)
        rate = await closed_loop(session, url, names, options.steps)
    return [
        Figure(name="memory of a held instance", value=each, unit="KiB", at_most=64.0),
        Figure(name="closed loop, held instances: steps per second", value=rate),
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=200)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--steps", type=int, default=4_000)
    parser.add_argument("--held", type=int, default=4_000)
    add_json_option(parser)
    options = parser.parse_args()
    figures: list[Figure] = []
    with service(NOOP, "--max-processes", str(options.instances)) as (url, _):
        figures += asyncio.run(measure_processes(url, options))
    with serving(str(PARTS / "bare_route.py")) as (url, _):
        bare_ms, bare = asyncio.run(measure_bare(url, options))
    measured = {figure.name: figure.value for figure in figures}
    added_ms = measured["open loop: p95 of a step"] - bare_ms
    figures.append(Figure(name="open loop of a bare route: p95", value=bare_ms, unit="ms"))
    figures.append(Figure(name="open loop: what the service adds to p95", value=added_ms, unit="ms", at_most=50.0))
    figures.append(Figure(name="closed loop of a bare route: steps per second", value=bare))
    figures.append(
        Figure(name="closed loop relative to the bare route", value=measured["closed loop: steps per second"] / bare)
    )
    with service("ledger", "--max-instances", str(options.held + 100)) as (url, pid):
        figures += asyncio.run(measure_held(url, pid, options))
    publish(figures, options.json)


if __name__ == "__main__":
    main()
