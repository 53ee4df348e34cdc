"""Resuming at scale: how long a stage with many finished rollouts takes until it asks for the first open one.

    python benchmarks/resume.py [--rollouts 200000] [--open 64]

The stage has so many finished rollouts in its journal, and a few at the end that were cut off; the records are those of
rollouts that the stage made with the tutor, under other keys. Time from the start of the process to the first new
request at the server, and the peak memory until then, beside plain reading of the same files; once with the files
dropped from the page cache, once from it. Target: 10 s, 1 GiB.

`--json` prints the figures as one JSON object instead. `--folder` is where the files go.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import time
from collections import defaultdict
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any
from unittest.mock import patch

import orjson
from measuring import KIB, cpu_seconds, drop_from_cache, measure, memory_kib, run_command, start_child
from scale_runs import MADE, SAMPLES, make_run, rollouts_instance, tutor, world_of

from treadle.agent.rows import head_of_row
from treadle.core.errors import EndpointUnavailable
from treadle.core.execute import execute
from treadle.core.journal import Journal
from treadle.core.runs import Run
from treadle.core.stage import Instance
from treadle.demo.embedded_model import embedded_tokenizer


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


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=200_000)
    parser.add_argument("--open", type=int, default=64)
    run_command(parser, (resume_stage, read_plainly), resume)


if __name__ == "__main__":
    main()
