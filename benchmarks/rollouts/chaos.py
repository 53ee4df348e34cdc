"""Run the stage `rollouts` against three failing servers, and compare with the same work without faults.

    python -m benchmarks.rollouts.chaos [--rollouts 2000] [--in-flight 64] [--latency 0.5] [--jitter 1.0] [--outage 30]
                               [--outages kill | freeze | freeze kill]

Three tutor servers run as separate processes. Of all requests, 5 % get HTTP 500, 5 % HTTP 429 with Retry-After, 2 % a
connection reset, 1 % never a response, 1 % broken JSON; `--faults` changes this. `kill`: after half of the rollouts the
second server is killed, and restarted on its port `--outage` seconds later. `freeze`: after a tenth of the rollouts the
first server accepts connections but does not respond for the same time. Searches are real. Completions depend on the
requests only, so both runs must produce the same rows.

Prints how rollouts ended, faults and retries from the servers' logs, and rollouts per second of both runs. Targets:
99.9 % of the rollouts end properly in the first pass, none by timeout; at most 1.2 retries per fault; 0.85 of the
rollouts per second without faults. The last target needs an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from treadle.core.config import Section, load_config
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance, Stage, StageContext
from treadle.datagen.questions.tables import QUESTIONS
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.demo.tutor.faults import choose_fault
from treadle.demo.tutor.settings import FaultKind, parse_faults
from treadle.demo.world_files import write_world
from treadle.environments.rollouts.settings import RolloutsSettings
from treadle.environments.rollouts.stage import ROLLOUTS_STAGE

FAULTS = "500=0.05,429=0.05,reset=0.02,hang=0.01,malformed=0.01"
FREEZE_AFTER, KILL_AFTER = 0.1, 0.5
ROLLOUT_TIME_S = 120.0
_BACKLOG_S = 0.05
"""Requests read within this time after the thaw were sent during the freeze, and clients have already retried them."""
_QUESTIONS, _ROLLOUTS = Address(1, "questions"), Address(1, "rollouts")


@dataclass(slots=True)
class Tutor:
    """A tutor server that can be frozen or killed."""

    number: int
    command: list[str]
    log: Path
    faults: Mapping[FaultKind, float]
    """Configured faults, as shares of requests."""
    process: subprocess.Popen[bytes] = field(init=False)
    url: str = ""
    frozen_at: float = float("inf")
    thawed_at: float = float("inf")
    killed_at: float = float("-inf")
    over: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Start the server, on its previous port if it had one."""
        port = ["--port", self.url.removesuffix("/v1").rsplit(":", 1)[1]] if self.url else []
        self.process = subprocess.Popen([*self.command, *port], stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.url = json.loads(self.process.stdout.readline())["url"]

    def freeze(self) -> None:
        """Stop the process while it is in use, so that the kernel accepts connections but nothing responds."""
        size = self.log.stat().st_size
        while self.log.stat().st_size == size and not self.over.wait(0.005):
            pass
        self.frozen_at = time.time()
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let the process continue."""
        self.process.send_signal(signal.SIGCONT)
        self.thawed_at = time.time()

    def end(self) -> None:
        """Kill the server."""
        self.killed_at = time.time()
        self.process.kill()
        self.process.wait()

    def traffic(self) -> tuple[int, Counter[str]]:
        """Return the number of rollout requests received, and the number of faulty ones by cause."""
        lines = [json.loads(line) for line in self.log.read_bytes().splitlines()]
        arrived, faults = 0, Counter[str]()
        open_: dict[int, dict[str, Any]] = {}
        for line in lines:
            if line["event"] == "answered":
                asked = open_.pop(line["serial"], None)
                frozen = asked is not None and asked["time"] < self.thawed_at and line["time"] > self.frozen_at
                faults["frozen"] += asked is not None and frozen
                continue
            if line["serial"] == 0:
                faults["killed"] += len(open_)
                open_.clear()
            if not line["seed"]:
                continue  # sent by the preflight
            arrived += 1
            fault = choose_fault(self.faults, self.number, line["digest"], line["attempt"])
            if fault is not None:
                faults[fault] += 1
            elif 0 <= line["time"] - self.thawed_at < _BACKLOG_S:
                faults["frozen"] += 1
            else:
                open_[line["serial"]] = line
        # Open requests of a server that was killed and received no request since.
        faults["killed"] += sum(line["time"] < self.killed_at for line in open_.values())
        return arrived, faults


@contextlib.contextmanager
def tutors(folder: Path, options: argparse.Namespace, *, faulty: bool) -> Iterator[list[Tutor]]:
    """Run three tutor servers for the duration of a block."""
    started = []
    try:
        for number in range(3):
            log = folder / f"requests-{number}.jsonl"
            command = [sys.executable, "-m", "treadle.demo.tutor", "--persona", "noisy", "--request-log", str(log)]
            command += ["--latency-s", str(options.latency), "--jitter-s", str(options.jitter)]
            shares = options.faults if faulty else ""
            command += ["--faults", shares, "--fault-seed", str(number)]
            tutor = Tutor(number, command, log, parse_faults(shares))
            tutor.start()
            started.append(tutor)
        yield started
    finally:
        for tutor in started:
            tutor.over.set()
        for thread in [thread for thread in threading.enumerate() if thread.name == "outage"]:
            thread.join()
        for tutor in started:
            tutor.end()


class Schedule:
    """Progress listener that measures time and triggers actions at given shares of finished rollouts."""

    def __init__(self, actions: Mapping[float, Callable[[], None]]) -> None:
        self.seconds = 0.0
        self._actions = dict(actions)
        self._total = self._done = 0
        self._began = 0.0

    def start(self, total: int, done: int, unit: str) -> None:
        """Start the clock."""
        self._total, self._began = total, time.perf_counter()

    def advance(self, count: int = 1, **facts: str | int | float) -> None:
        """Count finished rollouts and start the actions that are due, each in a thread."""
        self._done += count
        self.seconds = time.perf_counter() - self._began
        for share in [share for share in self._actions if self._done >= share * self._total]:
            threading.Thread(target=self._actions.pop(share), name="outage", daemon=True).start()


def outages(servers: list[Tutor], options: argparse.Namespace) -> dict[float, Callable[[], None]]:
    """Map shares of finished rollouts to the outages of the first or second server."""

    def freeze() -> None:
        servers[0].freeze()
        servers[0].over.wait(options.outage)
        servers[0].thaw()

    def kill() -> None:
        servers[1].end()
        if not servers[1].over.wait(options.outage):
            servers[1].start()

    actions = {"freeze": (FREEZE_AFTER, freeze), "kill": (KILL_AFTER, kill)}
    return dict(actions[name] for name in options.outages)


class _World(Section):
    path: Path


def _write_questions(context: StageContext) -> dict[str, Any]:
    """Write the questions of the sample world that need only searches."""
    rows = [json.loads(line) for line in context.settings.path.read_bytes().splitlines()]
    given = [
        {"question_key": f"{number:016x}", "dataset": row["source"], "domain": "qa", "question": row["question"],
         "answers": ["?"], "choices": [], "split": "train", "source_file": "f", "source_row": number + 1, "meta": "{}",
         "format": None, "scorer": None, "search": None, "environment": "default", "payload": "{}"}
        for number, row in enumerate(rows)
        if row["source"] in ("world-lookup", "world-hops")
    ]  # fmt: skip
    context.write("questions", given)
    return {}


def make(folder: Path, servers: list[Tutor], options: argparse.Namespace, schedule: Schedule) -> dict[str, Any]:
    """Run the stage with a single pass and return its results and what the servers logged."""
    run = Run.create(folder, "r", {}, {})
    write_world(folder / "world", documents=400, questions=60, heldout_questions=10, tiers=(0, 1))
    given = Stage(name="questions", version=1, settings=_World, produces=(QUESTIONS,), run=_write_questions)
    world = _World(path=folder / "world" / "questions.jsonl")
    num_questions = sum(
        ref.num_rows for ref in execute(Instance(address=_QUESTIONS, stage=given, settings=world), run).outputs.values()
    )
    samples = max(1, round(options.rollouts / num_questions))
    model = {
        "model": "treadle-tutor",
        "tokenizer": str(write_byte_tokenizer(folder / "tokenizer")),
        "endpoints": [{"url": server.url} for server in servers],
        "hedge_floor_s": options.hedge_floor,
    }
    search = {"corpus": [str(folder / "world" / "corpus.jsonl")], "cache_folder": str(folder / "indexes"), "top_n": 1}
    settings = {
        "model_name": "base",
        "model": model,
        "environment": {"python": {"enabled": False}, "search": search, "rollout_time_s": ROLLOUT_TIME_S},
        "options": {
            "max_concurrent": options.in_flight, "samples_per_question": samples, "sampling": {"max_tokens": 256},
            # A single pass; failed rollouts are counted, not fatal.
            "pending_retries": 0, "max_error_rate": 1.0,
        },
    }  # fmt: skip
    instance = Instance(
        address=_ROLLOUTS,
        stage=ROLLOUTS_STAGE,
        settings=load_config(RolloutsSettings, data=settings),
        inputs={"questions": (_QUESTIONS,)},
    )
    record = execute(instance, run, progress=schedule, accept_failures=True)
    rows = list(run.rows(record.outputs["rollouts"]).rows(["status", "num_turns", "error"]))
    times = pq.read_table(folder / record.telemetry["rollout_telemetry"]).column("seconds").to_pylist()
    statuses = Counter(row["status"] for row in rows)
    arrived, faults = 0, Counter[str]()
    for server in servers:
        more, of_server = server.traffic()
        arrived += more
        faults += of_server
    return {
        "rollouts": len(rows),
        "statuses": dict(statuses),
        "errors": [row["error"] for row in rows if row["error"]][:3],
        "proper": sum(statuses.values()) - statuses["failed"] - statuses["timeout"],
        "requests": sum(row["num_turns"] for row in rows),
        "arrived": arrived,
        "faults": dict(faults),
        "longest_s": max(times),
        "seconds": schedule.seconds,
        "digest": record.outputs["rollouts"].digest,
    }


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Measure both runs and compare them."""
    result: dict[str, Any] = {}
    for name in ("calm", "chaos"):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            with tutors(folder, options, faulty=name == "chaos") as servers:
                actions = outages(servers, options) if name == "chaos" else {}
                result[name] = make(folder, servers, options, Schedule(actions))
    calm, chaos = result["calm"], result["chaos"]
    faults = sum(chaos["faults"].values())
    retries = chaos["arrived"] - chaos["requests"]
    return {
        **result,
        "proper_share": chaos["proper"] / chaos["rollouts"],
        "retries_per_fault": retries / faults,
        "same_rows": calm["digest"] == chaos["digest"],
        "goodput": (calm["seconds"] / calm["proper"]) / (chaos["seconds"] / chaos["proper"]),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=2000)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--latency", type=float, default=0.5)
    parser.add_argument("--jitter", type=float, default=1.0)
    parser.add_argument("--outage", type=float, default=30.0)
    parser.add_argument("--outages", nargs="*", choices=("freeze", "kill"), default=["kill"])
    parser.add_argument("--faults", default=FAULTS, metavar="KIND=SHARE,...", help="of the faulty run")
    parser.add_argument("--hedge-floor", type=float, default=2.0)
    parser.add_argument("--json", action="store_true", help="one JSON object, all figures")
    options = parser.parse_args()
    result = compare(options)
    if options.json:
        print(json.dumps(result))
        return
    report(result, options)


def report(result: dict[str, Any], options: argparse.Namespace) -> None:
    """Print the figures as text."""
    calm, chaos = result["calm"], result["chaos"]
    work = f"{chaos['rollouts']} rollouts, {chaos['requests']} requests, {options.in_flight} at once"
    print(f"{work}, outages: {' and '.join(options.outages) or 'none'}, load {os.getloadavg()[0]:.1f}")
    print(f"ended properly: {result['proper_share']:.2%} {chaos['statuses']}; equal rows: {result['same_rows']}")
    print(f"longest rollout: {chaos['longest_s']:.1f} s (without faults {calm['longest_s']:.1f} s)")
    retries = chaos["arrived"] - chaos["requests"]
    print(f"faults: {chaos['faults']}; retries: {retries}, {result['retries_per_fault']:.2f} per fault")
    rates = [one["proper"] / one["seconds"] for one in (calm, chaos)]
    print(f"rollouts/s: {rates[0]:.1f} without faults, {rates[1]:.1f} with: {result['goodput']:.2f}")


if __name__ == "__main__":
    main()
