"""Measure how long a rollout waits for a sandbox, the cost of a program, and the memory of a warm sandbox.

`python -m benchmarks.rollouts.sandbox [--calls 60]` prints a table. Hand-out is the time from the call until a sandbox
with numpy and sympy imported is available. Calls come at a rate at which the machine can replace sandboxes, then as
fast as possible. The floor is the same program in a bare `python -c` with the same imports. Sixteen programs of one
second on sixteen workers are to take less than three seconds, without holding up the event loop for 100 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from treadle.agent.sandbox.config import SandboxSettings
from treadle.agent.sandbox.pool import SandboxPool
from treadle.agent.tools.python import PythonTool
from treadle.environments.planning.tools.code import CodeTool
from treadle.environments.planning.tools.settings import CodeSandboxSettings, CodeSettings

WORKERS = 16
PROGRAM = "import numpy, sympy\nprint(int(numpy.arange(10).sum()), sympy.Integer(3))"
PLAIN_PROGRAM = "print(45, 3)"
NUMPY_PROGRAM = "import numpy\nprint(int(numpy.arange(10).sum()), 3)"


async def hand_out_s(settings: SandboxSettings, calls: int, interval_s: float) -> list[float]:
    """Return seconds until a warm sandbox is available, at a steady rate of calls."""
    waits = []
    async with SandboxPool(settings) as pool:
        await asyncio.sleep(settings.pool_size * interval_s)
        for _ in range(calls):
            began = time.perf_counter()
            sandbox = await pool._take()
            waits.append(time.perf_counter() - began)
            sandbox.kill()
            await sandbox.wait_ended()
            await asyncio.sleep(interval_s)
    return waits


async def call_s(settings: SandboxSettings, calls: int, interval_s: float) -> list[float]:
    """Return seconds of whole tool calls, at a steady rate."""
    took = []
    async with PythonTool(settings) as tool:
        await asyncio.sleep(settings.pool_size * interval_s)
        for _ in range(calls):
            began = time.perf_counter()
            outcome = await tool.call(PROGRAM, deadline=asyncio.get_running_loop().time() + 60)
            assert outcome.text == "45 3", outcome
            took.append(time.perf_counter() - began)
            await asyncio.sleep(interval_s)
    return took


async def calls_per_s(settings: SandboxSettings, calls: int, program: str) -> float:
    """Return tool calls per second with `max_running` (8) at once, as fast as sandboxes are made."""
    async with PythonTool(settings) as tool:
        began = time.perf_counter()
        deadline = asyncio.get_running_loop().time() + 600
        await asyncio.gather(*(tool.call(program, deadline=deadline) for _ in range(calls)))
        return calls / (time.perf_counter() - began)


async def side_by_side(workers: int) -> dict[str, float]:
    """Return how long as many programs of one second take as there are warm workers, and the longest loop delay."""
    settings = CodeSettings(
        sandbox=CodeSandboxSettings(packages=(), pool_size=workers, max_running=workers), time_limit_s=60
    )
    delays, pause_s = [0.0], 0.005

    async def watch() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(pause_s)
            delays.append(time.perf_counter() - began - pause_s)

    async with CodeTool(settings) as tool:
        while tool._pool._warm.qsize() < workers:
            await asyncio.sleep(0.05)
        watching, began = asyncio.create_task(watch()), time.perf_counter()
        deadline = asyncio.get_running_loop().time() + 600
        calls = [tool.call("import time\ntime.sleep(1)\nprint(1)", deadline=deadline) for _ in range(workers)]
        outcomes = await asyncio.gather(*calls)
        seconds = time.perf_counter() - began
        watching.cancel()
    assert all(outcome.status == "ok" for outcome in outcomes), outcomes
    return {"wall_s": round(seconds, 2), "longest_loop_delay_ms": round(1000 * max(delays), 1)}


def cpu_s_per_call(settings: SandboxSettings, calls: int, program: str) -> float:
    """Return CPU seconds of a sandbox's processes per tool call, as fast as possible, without Treadle's own process."""

    def used(number: int) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        asyncio.run(calls_per_s(settings, number, program))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # The cost of the remaining warm sandboxes is the same both times and cancels out.
    return (used(calls + 1) - used(1)) / calls


async def warm_memory_kib(settings: SandboxSettings) -> float:
    """Return the proportional set size of one warm sandbox with all its processes, in KiB."""
    async with SandboxPool(settings) as pool:
        while pool._warm.qsize() < settings.pool_size:
            await asyncio.sleep(0.05)
        return sum(map(_pss_kib, _descendants(os.getpid()))) / settings.pool_size


def _descendants(pid: int) -> list[int]:
    children = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return children + [below for child in children for below in _descendants(child)]


def _pss_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    return 0


def bare_s(calls: int) -> list[float]:
    """Return seconds of the same program in a new interpreter, without a sandbox."""
    took = []
    for _ in range(calls):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True)
        took.append(time.perf_counter() - began)
    return took


def _spread_ms(seconds: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(seconds, n=100)
    return {"p50_ms": round(1000 * cuts[49], 2), "p95_ms": round(1000 * cuts[94], 2)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=60)
    parser.add_argument("--interval-s", type=float, default=0.5)
    parser.add_argument("--json", action="store_true", help="one JSON object, all figures")
    options = parser.parse_args()
    settings = SandboxSettings()
    figures = {
        "hand-out": _spread_ms(asyncio.run(hand_out_s(settings, options.calls, options.interval_s))),
        "whole call": _spread_ms(asyncio.run(call_s(settings, options.calls, options.interval_s))),
        "bare python -c": _spread_ms(bare_s(max(5, options.calls // 6))),
        "as fast as possible": {
            "calls_per_s": round(asyncio.run(calls_per_s(settings, options.calls, PROGRAM)), 2),
            "plain_calls_per_s": round(asyncio.run(calls_per_s(settings, options.calls, PLAIN_PROGRAM)), 2),
        },
        "CPU s per call": {
            name: round(cpu_s_per_call(settings, options.calls, program), 3)
            for name, program in (("plain", PLAIN_PROGRAM), ("numpy", NUMPY_PROGRAM), ("sympy", PROGRAM))
        },
        f"{WORKERS} programs of 1 s": asyncio.run(side_by_side(WORKERS)),
        "warm sandbox": {"pss_mib": round(asyncio.run(warm_memory_kib(settings)) / 1024, 1)},
        "machine": {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 2)},
    }
    if options.json:
        print(json.dumps(figures))
        return
    for name, values in figures.items():
        print(f"{name:22}", "  ".join(f"{key} {value}" for key, value in values.items()))


if __name__ == "__main__":
    main()
