"""Memory and resume at scale; each figure is measured in a process of its own, its floor in the same run.

    python benchmarks/scale.py held   [--in-flight 4000] [--delay 1.0]
    python benchmarks/scale.py flat   [--rollouts 200000] [--first 8000]
    python benchmarks/scale.py resume [--rollouts 200000] [--open 64]

- held: the stage `rollouts` with so many rollouts in flight at once against a server that takes `--delay` seconds for
  each of the three turns, beside bare aiohttp with the same bodies. What a rollout costs is the peak resident memory
  until the last one is finished, less that of the same process with 8 in flight, divided by their number.
  Target: at least 4,000, at most 64 KiB each.
- flat: the stage against the tutor without latency, with real search and journal, 8 rollouts per question; each ends
  after one request and one search. Resident memory while it goes on, and the peak with the artifact written. The floor
  is the journal's index alone: it grows by design, one place per finished rollout. Target: nothing else grows.
- resume: a stage with so many finished rollouts in its journal, and a few at the end that were cut off; the records are
  those of rollouts that the stage made with the tutor, under other keys. Time from the start of the process to the
  first new request at the server, and the peak memory until then, beside plain reading of the same files; once with
  the files dropped from the page cache, once from it. Target: 10 s, 1 GiB.

`--json` prints the figures as one JSON object instead. `--folder` is where the files go.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any
from unittest.mock import patch

import harness
import orjson
import stub_server
import stub_tools

from treadle.agent import opening, rollouts
from treadle.agent.rows import head_of_row
from treadle.core.config import Section, load_config
from treadle.core.errors import EndpointUnavailable
from treadle.core.execute import execute
from treadle.core.journal import Journal
from treadle.core.llm.pool import ModelPool
from treadle.core.runs import Run
from treadle.core.schemas import QUESTIONS
from treadle.core.stage import Address, Instance, Stage, StageContext
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.demo.embedded_model import embedded_tokenizer
from treadle.demo.world import write_world

SAMPLES = 8
HANDFUL = 8
MADE = Address(1, "rollouts", "base")
GIVEN = Address(1, "questions")
KIB = 1024


def memory_kib(field: str, pid: str | int = "self") -> int:
    """`VmRSS` (resident now) or `VmHWM` (its peak) of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


class QuestionTexts(Section):
    """Settings of the stage that hands out questions."""

    texts: tuple[str, ...]
    """Taken in turn."""
    number: int
    """Rows."""


def _write_questions(context: StageContext) -> dict[str, Any]:
    given: QuestionTexts = context.settings
    blank = {"dataset": "stub", "domain": "qa", "answers": ["1"], "choices": [], "split": "heldout"}
    for first in range(0, given.number, 1000):
        rows = [
            {**blank, "question_key": f"{number:016x}", "question": given.texts[number % len(given.texts)],
             "source_file": "f", "source_row": number + 1, "meta": "{}"}
            for number in range(first, min(first + 1000, given.number))
        ]  # fmt: skip
        context.write("questions", rows)
    return {}


def make_run(folder: Path, texts: Sequence[str], number: int) -> Run:
    """A run with so many questions."""
    run = Run.create(folder, "r", {}, {})
    stage = Stage(name="questions", version=1, settings=QuestionTexts, produces=(QUESTIONS,), run=_write_questions)
    execute(Instance(address=GIVEN, stage=stage, settings=QuestionTexts(texts=tuple(texts), number=number)), run)
    return run


def rollouts_instance(tokenizer: Path, url: str, model: str, environment: dict[str, Any], **options: Any) -> Instance:
    """The stage under test."""
    data = {
        "model_name": "base",
        "model": {
            "model": model,
            "tokenizer": str(tokenizer),
            "endpoints": [{"url": url}],
            "max_in_flight": 100_000,
        },
        "environment": environment,
        "options": options,
    }
    settings = load_config(rollouts.RolloutsSettings, data=data)
    return Instance(address=MADE, stage=rollouts.ROLLOUTS, settings=settings, inputs={"questions": (GIVEN,)})


class MemoryTimes:
    """A progress listener that notes resident memory after so many rollouts, and the peak before the rows are written.

    Every note after the first doubles the number of rollouts.
    """

    def __init__(self, first: int) -> None:
        self.resident_kib: dict[int, int] = {}
        self.peak_kib = 0
        self.seconds = 0.0
        self._next = first
        self._done = self._total = 0
        self._started = time.perf_counter()

    def start(self, total: int, done: int, unit: str) -> None:
        """Work begins."""
        self._total = total
        self._started = time.perf_counter()

    def advance(self, count: int = 1, **facts: str | int | float) -> None:
        """One more is finished."""
        self._done += count
        if self._done in (self._next, self._total):
            self.resident_kib[self._done] = memory_kib("VmRSS")
            print(f"{self._done} rollouts: {self.resident_kib[self._done] / KIB:.1f} MiB", file=sys.stderr, flush=True)
            self._next *= 2
        if self._done == self._total:
            self.peak_kib = memory_kib("VmHWM")
            self.seconds = time.perf_counter() - self._started


# What runs in a process of its own. Each returns what it measured.


def held_stage(folder: Path, url: str, num_rollouts: int, in_flight: int) -> dict[str, Any]:
    """The stage with so many rollouts in flight."""
    pools: list[ModelPool] = []

    class Watched(ModelPool):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            pools.append(self)

    stub_tools.take_the_place_of_tools(stub_server.RESULT_TEXT)
    opening.ModelPool = Watched
    run = make_run(folder, [harness.QUESTION.format(number=0)], num_rollouts)
    times = MemoryTimes(num_rollouts)
    tokenizer = write_byte_tokenizer(folder / "tokenizer")
    instance = rollouts_instance(tokenizer, url, stub_server.MODEL, {}, max_concurrent=in_flight)
    record = execute(instance, run, progress=times)
    assert record.metrics["status_answered"] == num_rollouts
    in_flight_seen = pools[0].stats.peak_in_flight
    return {"peak_kib": times.peak_kib, "seconds": times.seconds, "on_the_wire": in_flight_seen}


def held_bare(folder: Path, url: str, num_rollouts: int, in_flight: int) -> dict[str, Any]:
    """The floor of `held`."""
    requests = harness.prepared_requests(folder / "tokenizer")
    result = asyncio.run(harness.run_bare(url, num_rollouts, in_flight, requests))
    return {"peak_kib": memory_kib("VmHWM"), "seconds": result["wall"], "on_the_wire": in_flight}


def world_of(folder: Path) -> tuple[list[str], dict[str, Any]]:
    """Questions of the sample world that take one search, and an environment with that search alone."""
    world = write_world(folder / "world", questions=800)
    lines = map(orjson.loads, world.questions.read_text().splitlines())
    search = {"corpus": [str(world.corpus)], "cache_folder": str(folder), "top_n": 1, "document_chars": 200}
    environment = {"python": {"enabled": False}, "search": search}
    return [row["question"] for row in lines if row["source"] == "world-lookup"], environment


def flat_stage(folder: Path, url: str, num_rollouts: int, first: int) -> dict[str, Any]:
    """The stage until its artifact is written."""
    texts, environment = world_of(folder)
    run = make_run(folder, texts, num_rollouts // SAMPLES)
    options = {"samples_per_question": SAMPLES, "sampling": {"max_tokens": 256}}
    instance = rollouts_instance(embedded_tokenizer(), url, "treadle-tutor", {**environment, "max_turns": 1}, **options)
    times = MemoryTimes(first)
    record = execute(instance, run, progress=times)
    assert record.metrics["calls_executed"] == record.metrics["status_max_turns"] == num_rollouts
    return {
        "resident_kib": times.resident_kib,
        "peak_before_writing_kib": times.peak_kib,
        "peak_kib": memory_kib("VmHWM"),
        "seconds": times.seconds,
    }


def journal_index(folder: Path, num_rollouts: int) -> dict[str, Any]:
    """What the journal alone keeps of so many finished rollouts."""
    with Journal(folder / "index") as journal:
        journal.finish("f" * 16, b"{}")
        before = memory_kib("VmRSS")
        for number in range(num_rollouts):
            journal.finish(f"{number:016x}", b"{}")
        return {"bytes_each": (memory_kib("VmRSS") - before) * KIB / num_rollouts}


def resume_stage(folder: Path, url: str) -> dict[str, Any]:
    """Go on with what is there; the parent ends this process at its first request."""
    execute(resumed_instance(folder, url), Run.open(folder, "r"))
    return {}


def resumed_instance(folder: Path, url: str) -> Instance:
    """The instance of `resume`."""
    _, environment = world_of(folder)
    return rollouts_instance(embedded_tokenizer(), url, "treadle-tutor", environment, samples_per_question=SAMPLES)


def read_plainly(folder: Path) -> dict[str, Any]:
    """The floor of `resume`."""
    started = time.perf_counter()
    num_bytes = 0
    for path in sorted(folder.glob("*.journal")):
        with path.open("rb", buffering=0) as file:
            while part := file.read(1 << 20):
                num_bytes += len(part)
    return {"seconds": time.perf_counter() - started, "num_bytes": num_bytes}


CHILDREN: dict[str, Callable[..., dict[str, Any]]] = {
    function.__name__: function
    for function in (held_stage, held_bare, flat_stage, journal_index, resume_stage, read_plainly)
}


def start_child(name: str, folder: Path, *arguments: Any) -> subprocess.Popen[str]:
    """Start one of `CHILDREN`."""
    call = json.dumps([name, str(folder), *arguments])
    return subprocess.Popen([sys.executable, __file__, "--child", call], stdout=subprocess.PIPE, text=True)


def measure(name: str, folder: Path, *arguments: Any) -> dict[str, Any]:
    """What one of `CHILDREN` measured."""
    folder.mkdir(parents=True, exist_ok=True)
    with start_child(name, folder, *arguments) as child:
        said, _ = child.communicate()
    if child.returncode:
        raise SystemExit(f"{name} ended with {child.returncode}")
    result: dict[str, Any] = json.loads(said.splitlines()[-1])
    return result


# The three commands.


def held(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Rollouts in flight at once."""
    figures: dict[str, Any] = {"in_flight": options.in_flight, "delay_s": options.delay}
    with harness.stub(options.delay) as url:
        for name in ("held_bare", "held_stage"):
            few = measure(name, folder / f"{name}-few", url, 2 * HANDFUL, HANDFUL)
            many = measure(name, folder / f"{name}-many", url, options.in_flight, options.in_flight)
            grown = many["peak_kib"] - few["peak_kib"]
            figures[name] = {
                "handful_peak_mib": round(few["peak_kib"] / KIB, 1),
                "peak_mib": round(many["peak_kib"] / KIB, 1),
                "kib_each": round(grown / options.in_flight, 1),
                "on_the_wire": many["on_the_wire"],
                "rollouts_per_s": round(options.in_flight / many["seconds"], 1),
            }
    return figures


@contextlib.contextmanager
def tutor(tokenizer: Path) -> Iterator[str]:
    """A tutor in a process of its own; yields its URL."""
    command = [sys.executable, "-m", "treadle.demo.tutor", "--tokenizer", str(tokenizer)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            yield json.loads(child.stdout.readline())["url"]
        finally:
            child.terminate()


def flat(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Rollouts done."""
    figures: dict[str, Any] = {"rollouts": options.rollouts}
    index = measure("journal_index", folder, options.rollouts)
    with tutor(embedded_tokenizer()) as url:
        few = measure("flat_stage", folder / "few", url, options.first, options.first)
        many = measure("flat_stage", folder / "many", url, options.rollouts, options.first)
    resident = list(many["resident_kib"].values())
    figures["resident_mib"] = {int(done): round(kib / KIB, 1) for done, kib in many["resident_kib"].items()}
    for name, result in (("few", few), ("many", many)):
        figures[name] = {
            "peak_before_writing_mib": round(result["peak_before_writing_kib"] / KIB, 1),
            "peak_mib": round(result["peak_kib"] / KIB, 1),
            "seconds": round(result["seconds"], 1),
        }
    more = options.rollouts - options.first
    figures["bytes_each"] = round((resident[-1] - resident[0]) * KIB / more)
    figures["bytes_each_with_artifact"] = round((many["peak_kib"] - few["peak_kib"]) * KIB / more)
    figures["journal_index_bytes_each"] = round(index["bytes_each"])
    return figures


def resume(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Time and memory until the first new request."""
    journal = write_journal(folder, options.rollouts, options.open)
    figures: dict[str, Any] = {"rollouts": options.rollouts, "open": options.open}
    for cache in ("cold", "warm"):
        if cache == "cold":
            drop_from_cache(journal)
        floor = measure("read_plainly", journal)
        if cache == "cold":
            drop_from_cache(journal)
        seconds, cpu_s, peak_kib = until_first_request(folder)
        figures["journal_gib"] = round(floor["num_bytes"] / 2**30, 2)
        figures[cache] = {
            "seconds": round(seconds, 2),
            "cpu_s": round(cpu_s, 2),
            "peak_mib": round(peak_kib / KIB, 1),
            "reading_plainly_s": round(floor["seconds"], 2),
        }
    return figures


def write_journal(folder: Path, num_rollouts: int, num_open: int) -> Path:
    """A journal as the stage leaves it when it is killed near its end; returns its folder.

    Its records are those of rollouts that the stage made with the tutor, under other keys.
    """
    texts, environment = world_of(folder)
    with tutor(embedded_tokenizer()) as url:
        recorded = recorded_rollouts(folder / "recorded", url, texts, environment)
    run = make_run(folder, texts, num_rollouts // SAMPLES)
    with contextlib.suppress(EndpointUnavailable):
        execute(resumed_instance(folder, "http://127.0.0.1:9/v1"), run)
    journal = run.storage.directory(run.journal_key(MADE, run.attempts(MADE)[-1].fingerprint))
    with Journal(journal) as records:
        for number, (units, value) in zip(range(num_rollouts), itertools.cycle(recorded), strict=False):
            row = value["row"]
            head = head_of_row({**row, "question_key": f"{number // SAMPLES:016x}"}, "base", number % SAMPLES, 0)
            key = head["rollout_key"]
            is_open = number >= num_rollouts - num_open
            for unit, content in units[: 1 if is_open else None]:
                records.append(key, unit, content)
            if not is_open:
                telemetry = {**value["telemetry"], "rollout_key": key}
                records.finish(key, orjson.dumps({**value, "row": {**row, **head}, "telemetry": telemetry}))
    return journal


Recorded = tuple[list[tuple[str, bytes]], dict[str, Any]]
"""The units of a rollout as the stage journals them, and its final record."""


def recorded_rollouts(folder: Path, url: str, texts: Sequence[str], environment: dict[str, Any]) -> list[Recorded]:
    """What the stage journals of one rollout per question."""
    units: dict[str, list[tuple[str, bytes]]] = defaultdict(list)
    final: dict[str, bytes] = {}

    append, finish = Journal.append, Journal.finish

    def note_unit(self: Journal, owner: str, unit: str, value: bytes) -> None:
        units[owner].append((unit, value))
        append(self, owner, unit, value)

    def note_final(self: Journal, owner: str, value: bytes) -> None:
        final[owner] = value
        finish(self, owner, value)

    with patch.object(Journal, "append", note_unit), patch.object(Journal, "finish", note_final):
        run = make_run(folder, texts, len(texts))
        execute(rollouts_instance(embedded_tokenizer(), url, "treadle-tutor", environment), run)
    return [(units[owner], orjson.loads(value)) for owner, value in final.items()]


class FirstRequest(ThreadingHTTPServer):
    """Answers the preflight, and notes when the first request of a rollout comes."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.came = Event()
        self.came_at = 0.0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FirstRequest

    def do_GET(self) -> None:
        self._reply({"data": [{"id": "treadle-tutor", "max_model_len": 32768}]})

    def do_POST(self) -> None:
        body = orjson.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body.get("stop"):
            self.server.came_at = self.server.came_at or time.perf_counter()
            self.server.came.set()
            return
        choice = {"index": 0, "text": "x", "token_ids": [120], "finish_reason": "length", "stop_reason": None}
        self._reply({"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _reply(self, value: dict[str, Any]) -> None:
        body = orjson.dumps(value)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def until_first_request(folder: Path) -> tuple[float, float, int]:
    """Seconds from the start of the process to its first new request, of them CPU, and its peak memory in KiB."""
    with FirstRequest() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        started = time.perf_counter()
        with start_child("resume_stage", folder, url) as child:
            while not server.came.wait(0.1):
                if child.poll() is not None:
                    raise SystemExit(f"resume_stage ended with {child.returncode} and asked for nothing")
            peak_kib, cpu_s = memory_kib("VmHWM", child.pid), cpu_seconds(child.pid)
            child.kill()
        server.shutdown()
    return server.came_at - started, cpu_s, peak_kib


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def drop_from_cache(folder: Path) -> None:
    """Let the kernel forget the files' pages."""
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


COMMANDS = {function.__name__: function for function in (held, flat, resume)}


def show(figures: dict[str, Any], indent: str = "") -> None:
    """Print one figure per line."""
    for name, value in figures.items():
        if isinstance(value, dict):
            print(f"{indent}{name}")
            show(value, f"{indent}  ")
        else:
            print(f"{indent}{name}: {value}")


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=COMMANDS, nargs="?")
    parser.add_argument("--in-flight", type=int, default=4000)
    parser.add_argument("--delay", type=float, default=1.0)
    parser.add_argument("--rollouts", type=int, default=200_000)
    parser.add_argument("--first", type=int, default=8000)
    parser.add_argument("--open", type=int, default=64)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name, where, *arguments = json.loads(options.child)
        print(json.dumps(CHILDREN[name](Path(where), *arguments)))
        return
    if options.command is None:
        parser.error(f"name what to measure: {', '.join(COMMANDS)}")
    folder = Path(tempfile.mkdtemp(prefix="treadle-scale-", dir=options.folder))
    try:
        figures = COMMANDS[options.command](folder, options)
    finally:
        shutil.rmtree(folder)
    if options.json:
        print(json.dumps(figures))
    else:
        show(figures)


if __name__ == "__main__":
    main()
