"""Measure the rollout harness against bare aiohttp: CPU per rollout and throughput for the same requests and server.

    python -m benchmarks.rollouts.harness [--rollouts 4096] [--in-flight 256] [--delay 0.2] [--repeat 3]

A rollout is three model calls of `--delay` seconds with two stub tool calls in between; each call sends about 2,800
token ids and receives 300. Five clients, each in a process of its own:

- bare: one aiohttp session posts the prepared bodies and parses the responses with orjson. The floor.
- pool: `ModelPool.complete` with the same prompts. Target: at most 2 times bare's CPU.
- engine: the stage `rollouts` until its last rollout is finished: prompts, protocol, ledger, journal, pool.
- dialogue: the same stage with as many model calls and tokens, but a stub partner who replies between the turns.
- whole: engine, plus starting the stage, sorting, schema checks and the committed artifact. `scores` is listed
  separately.

Targets: engine at most 5 times bare's CPU, at least 0.85 of its throughput; dialogue at most 1.15 times engine's CPU.
They need an otherwise idle machine: the engine fills most of one core, and the stub server part of another.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from benchmarks.parts import stub_partner, stub_server, stub_tools
from benchmarks.parts.measuring import this_module
from treadle.core.chat import ChatTokenizer
from treadle.core.config import load_config
from treadle.core.llm.config import ModelSettings, Sampling
from treadle.core.llm.pool import ModelPool
from treadle.core.llm.types import CompletionRequest
from treadle.core.llm.wire import completion_body
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.environments.question.settings import QuestionSettings

QUESTION = "How many metres is twice the height of the tower of Vessoria, plus the year of its completion? ({number})"
STOPS = ("</search>", "</python>", "</answer>")
MODES = ("bare", "pool", "engine", "dialogue")


class CpuMeter:
    """CPU of this process (all threads) and wall time since `start`."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Restart the measurement."""
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def read(self) -> tuple[float, float]:
        """Return CPU seconds and wall seconds."""
        return time.process_time() - self._cpu, time.perf_counter() - self._wall


def prepared_requests(folder: Path) -> list[CompletionRequest]:
    """Return the three requests of a rollout, as the engine sends them."""
    tokenizer = ChatTokenizer.load(write_byte_tokenizer(folder))
    system = QuestionSettings().system_text
    messages = [{"role": "system", "content": system}, {"role": "user", "content": QUESTION.format(number=0)}]
    context = tokenizer.prompt_ids(messages)
    requests = []
    for text in stub_server.TURNS:
        requests.append(CompletionRequest(list(context), 4096, Sampling(), STOPS, seed=1))
        context += tokenizer.encode(text) + tokenizer.encode(f"<result>{stub_server.RESULT_TEXT}</result>")
    return requests


async def run_bare(url: str, num_rollouts: int, in_flight: int, requests: list[CompletionRequest]) -> dict[str, float]:
    """Measure the floor."""
    bodies = [completion_body(stub_server.MODEL, request, want_ids=True) for request in requests]
    headers = {"Content-Type": "application/json"}
    numbers = iter(range(num_rollouts))
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def work() -> None:
            for _ in numbers:
                for body in bodies:
                    async with session.post(f"{url}/completions", data=body, headers=headers) as response:
                        assert orjson.loads(await response.read())["choices"][0]["finish_reason"] == "stop"

        meter = CpuMeter()
        await asyncio.gather(*(work() for _ in range(in_flight)))
        cpu, wall = meter.read()
    return {"cpu": cpu, "wall": wall}


async def run_pool(url: str, num_rollouts: int, in_flight: int, requests: list[CompletionRequest]) -> dict[str, float]:
    """Measure the model pool alone."""
    settings = ModelSettings.model_validate(
        {"model": stub_server.MODEL, "endpoints": [{"url": url}], "max_in_flight": 100_000}
    )
    numbers = iter(range(num_rollouts))
    async with ModelPool("policy", settings) as pool:
        loop = asyncio.get_running_loop()

        async def work() -> None:
            for number in numbers:
                for request in requests:
                    await pool.complete(request, session=str(number), deadline=loop.time() + 1200)

        meter = CpuMeter()
        await asyncio.gather(*(work() for _ in range(in_flight)))
        cpu, wall = meter.read()
    return {"cpu": cpu, "wall": wall}


class LoopTimes:
    """Progress listener that measures from the start of the first rollout to the end of the last one."""

    def __init__(self) -> None:
        self.meter = CpuMeter()
        self.cpu = self.wall = 0.0
        self._num_pending = 0

    def start(self, total: int, done: int, unit: str) -> None:
        """Start the measurement."""
        self._num_pending = total - done
        self.meter.start()

    def advance(self, count: int = 1, **facts: str | int | float) -> None:
        """Count finished rollouts, and read the meter after the last one."""
        self._num_pending -= count
        if not self._num_pending:
            self.cpu, self.wall = self.meter.read()


def run_engine(
    url: str, num_rollouts: int, in_flight: int, folder: Path, *, dialogue: bool = False
) -> dict[str, float]:
    """Measure the stages `rollouts` and `scores`, executed as in a run, with stub tools or with a stub partner."""
    from treadle.core.runs.address import Address
    from treadle.core.runs.execute import execute
    from treadle.core.runs.run import Run
    from treadle.core.runs.stage import Instance, Stage, StageContext
    from treadle.datagen.questions.tables import QUESTIONS
    from treadle.environments.rollouts.settings import RolloutsSettings
    from treadle.environments.rollouts.stage import ROLLOUTS_STAGE
    from treadle.eval.config import ScoresSettings
    from treadle.eval.entry import SCORES_STAGE

    def write_questions(context: StageContext) -> dict[str, Any]:
        blank = {
            "dataset": "stub",
            "domain": "math",
            "choices": [],
            "split": "heldout",
            "source_file": "f",
            "meta": "{}",
            "format": None,
            "scorer": None,
            "search": None,
            "environment": "default",
            "payload": "{}",
        }
        rows = (
            {"question_key": f"{number:016x}", "question": QUESTION.format(number=number), "answers": ["2300"],
             "source_row": number + 1, **blank}
            for number in range(num_rollouts)
        )  # fmt: skip
        context.write("questions", list(rows))
        return {}

    stub_tools.replace_tools(stub_server.RESULT_TEXT)
    questions, made, scored = (Address(1, stage) for stage in ("questions", "rollouts", "scores"))
    run = Run.create(folder, "r", {}, {})
    given = Stage(name="questions", version=1, settings=ScoresSettings, produces=(QUESTIONS,), run=write_questions)
    execute(Instance(address=questions, stage=given, settings=ScoresSettings()), run)
    model = {
        "model": stub_server.MODEL,
        "tokenizer": str(write_byte_tokenizer(folder / "tokenizer")),
        "endpoints": [{"url": url}],
        "max_in_flight": 100_000,
    }
    environment = {"type": stub_partner.TYPE} if dialogue else {}
    settings = load_config(
        RolloutsSettings,
        data={
            "model_name": "base",
            "model": model,
            "environment": environment,
            "options": {"max_concurrent": in_flight},
        },
    )
    instance = Instance(address=made, stage=ROLLOUTS_STAGE, settings=settings, inputs={"questions": (questions,)})
    times, meter = LoopTimes(), CpuMeter()
    record = execute(instance, run, progress=times)
    whole_cpu, whole_wall = meter.read()
    expected = {"status_finished": num_rollouts} if dialogue else {"status_answered": num_rollouts}
    expected |= {"num_turns": 3 * num_rollouts, "calls_executed": 0 if dialogue else 2 * num_rollouts}
    assert expected.items() <= record.metrics.items(), record.metrics
    meter.start()
    inputs = {"questions": (questions,), "rollouts": (made,)}
    scores = load_config(ScoresSettings, data={"environments": {"default": environment}} if dialogue else {})
    execute(Instance(address=scored, stage=SCORES_STAGE, settings=scores, inputs=inputs), run)
    return {
        "cpu": times.cpu,
        "wall": times.wall,
        "whole_cpu": whole_cpu,
        "whole_wall": whole_wall,
        "scores_cpu": meter.read()[0],
    }


def run_mode(mode: str, url: str, num_rollouts: int, in_flight: int) -> dict[str, float]:
    """Measure one client in this process."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if mode in ("engine", "dialogue"):
            result = run_engine(url, num_rollouts, in_flight, folder, dialogue=mode == "dialogue")
        else:
            client = run_bare if mode == "bare" else run_pool
            result = asyncio.run(client(url, num_rollouts, in_flight, prepared_requests(folder / "tokenizer")))
    result["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return result


@contextlib.contextmanager
def stub(delay_s: float) -> Iterator[str]:
    """Run the stub server in a process of its own and yield its URL."""
    command = [sys.executable, stub_server.__file__, "--delay", str(delay_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdin is not None
        yield f"http://127.0.0.1:{int(child.stdout.readline())}/v1"
        child.stdin.close()


def ratios(results: dict[str, list[dict[str, float]]], num_rollouts: int) -> dict[str, dict[str, float]]:
    """Return medians per client, with ratios to the floor of the same round."""
    median, floors = statistics.median, results["bare"]
    return {
        mode: {
            "cpu_ms": median(1e3 * one["cpu"] / num_rollouts for one in measured),
            "cpu_ratio": median(one["cpu"] / floor["cpu"] for one, floor in zip(measured, floors, strict=True)),
            "per_s": median(num_rollouts / one["wall"] for one in measured),
            "rate_ratio": median(floor["wall"] / one["wall"] for one, floor in zip(measured, floors, strict=True)),
            "peak_mib": median(one["peak_mib"] for one in measured),
        }
        for mode, measured in results.items()
    }


def dialogue_ratio(results: dict[str, list[dict[str, float]]]) -> float | None:
    """Return the median of the dialogue's CPU relative to that of the engine with tools in the same round."""
    if not {"dialogue", "engine"} <= results.keys():
        return None
    pairs = zip(results["dialogue"], results["engine"], strict=True)
    return statistics.median(dialogue["cpu"] / engine["cpu"] for dialogue, engine in pairs)


def report(results: dict[str, list[dict[str, float]]], num_rollouts: int) -> None:
    """Print medians and ratios to the floor of the same round."""
    print(f"{'':8} {'CPU ms/rollout':>15} {'x bare':>8} {'rollouts/s':>11} {'x bare':>8} {'peak MiB':>9}")

    def row(name: str, mode: str, cpu: str = "cpu", wall: str = "wall") -> None:
        pairs = list(zip(results[mode], results["bare"], strict=True))
        median = statistics.median
        print(
            f"{name:8} {median(1e3 * one[cpu] / num_rollouts for one, _ in pairs):15.2f}"
            f" {median(one[cpu] / floor['cpu'] for one, floor in pairs):8.2f}"
            f" {median(num_rollouts / one[wall] for one, _ in pairs):11.1f}"
            f" {median(floor['wall'] / one[wall] for one, floor in pairs):8.2f}"
            f" {median(one['peak_mib'] for one, _ in pairs):9.0f}"
        )

    for mode in results:
        row(mode, mode)
    if "engine" in results:
        row("whole", "engine", "whole_cpu", "whole_wall")
        scores = statistics.median(1e3 * one["scores_cpu"] / num_rollouts for one in results["engine"])
        print(f"scores: {scores:.2f} CPU ms per rollout")
    if (ratio := dialogue_ratio(results)) is not None:
        print(f"dialogue: {ratio:.2f} times engine's CPU")


def main() -> None:
    """Run all clients in turn, `--repeat` times, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=4096)
    parser.add_argument("--in-flight", type=int, default=256)
    parser.add_argument("--delay", type=float, default=0.2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", choices=MODES, nargs="+", default=MODES)
    parser.add_argument("--json", action="store_true", help="one JSON object, medians of all figures")
    parser.add_argument("--child", nargs=2, metavar=("MODE", "URL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(run_mode(*options.child, options.rollouts, options.in_flight)))
        return
    results: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES if mode == "bare" or mode in options.only}
    with stub(options.delay) as url:
        for _ in range(options.repeat):
            for mode, measured in results.items():
                arguments = [word for word in sys.argv[1:] if word != "--json"]
                command = [*this_module(), *arguments, "--child", mode, url]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                measured.append(json.loads(done.stdout.splitlines()[-1]))
    if options.json:
        print(json.dumps({**ratios(results, options.rollouts), "dialogue_ratio": dialogue_ratio(results)}))
        return
    conditions = f"{options.in_flight} in flight, {options.delay:g} s per call, {os.cpu_count()} CPUs"
    print(f"{options.rollouts} rollouts, {conditions}, load {os.getloadavg()[0]:.1f}")
    report(results, options.rollouts)


if __name__ == "__main__":
    main()
