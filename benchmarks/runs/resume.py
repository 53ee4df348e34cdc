"""Measure how long a stage with many finished rollouts takes to resume, until it sends the first pending request.

    python -m benchmarks.runs.resume [--rollouts 200000] [--open 64]

The journal of the stage holds this many finished rollouts, and at the end a few unfinished ones. Its records are copies
of rollouts that the stage made with the tutor, under other keys. Measured are the time from the start of the process to
the first new request at the server, and the peak memory until then, compared with plain reading of the same files: once
with the files dropped from the page cache, once with them in it. Target: 10 s, 1 GiB.

`--json` prints the figures as one JSON object instead. `--folder` is the folder for the files.
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

from benchmarks.parts.measuring import KIB, cpu_seconds, drop_from_cache, measure, memory_kib, run_command, start_child
from benchmarks.parts.scale_runs import ROLLOUTS_ADDRESS, SAMPLES, make_run, rollouts_instance, tutor, world_of
from treadle.core.errors import EndpointUnavailable
from treadle.core.journal.journal import Journal
from treadle.core.llm.preflight import STOP_TEXTS
from treadle.core.runs.bound_inputs import bind_inputs, open_inputs
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance
from treadle.demo.embedded_model import embedded_tokenizer
from treadle.environments.rollouts.jobs import rollout_jobs


def resume_stage(folder: Path, url: str) -> dict[str, Any]:
    """Resume the run; the parent process kills this one at its first request."""
    execute(resumed_instance(folder, url), Run.open(folder, "r"))
    return {}


def resumed_instance(folder: Path, url: str) -> Instance:
    """Return the instance that is resumed."""
    _, environment = world_of(folder)
    return rollouts_instance(embedded_tokenizer(), url, "treadle-tutor", environment, samples_per_question=SAMPLES)


def read_plainly(folder: Path) -> dict[str, Any]:
    """Read all journal files, as a floor for resuming."""
    started = time.perf_counter()
    num_bytes = 0
    for path in sorted(folder.glob("*.journal")):
        with path.open("rb", buffering=0) as file:
            while part := file.read(1 << 20):
                num_bytes += len(part)
    return {"seconds": time.perf_counter() - started, "num_bytes": num_bytes}


def resume(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure time and memory until the first new request."""
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
    """Write a journal as the stage leaves it when it is killed near its end; return its folder.

    Its records are copies of rollouts that the stage made with the tutor, under other keys.
    """
    texts, environment = world_of(folder)
    with tutor(embedded_tokenizer()) as url:
        recorded = recorded_rollouts(folder / "recorded", url, texts, environment)
    run = make_run(folder, texts, num_rollouts // SAMPLES)
    # Nothing listens on this port. The stage only creates its attempt and journal before it fails.
    with contextlib.suppress(EndpointUnavailable):
        execute(resumed_instance(folder, "http://127.0.0.1:9/v1"), run)
    journal = run.storage.directory(run.journal_key(ROLLOUTS_ADDRESS, run.attempts(ROLLOUTS_ADDRESS)[-1].journal_name))
    instance = resumed_instance(folder, "http://127.0.0.1:9/v1")
    jobs = rollout_jobs(instance.settings, open_inputs(run, bind_inputs(instance, run)))
    with Journal(journal) as records:
        for number, (job, (units, value)) in enumerate(zip(jobs, itertools.cycle(recorded), strict=False)):
            is_open = number >= num_rollouts - num_open
            for unit, content in units[: 1 if is_open else None]:
                records.append(job.key, unit, content)
            if not is_open:
                records.finish(job.key, orjson.dumps(value))
    return journal


Recorded = tuple[list[tuple[str, bytes]], dict[str, Any]]
"""Units of a rollout as the stage writes them to the journal, and its final record."""


def recorded_rollouts(folder: Path, url: str, texts: Sequence[str], environment: dict[str, Any]) -> list[Recorded]:
    """Return what the stage writes to the journal for one rollout per question."""
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
    """Server that answers the preflight, and records the time of the first rollout request."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requested = Event()
        self.requested_at = 0.0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FirstRequest

    def do_GET(self) -> None:
        self._reply({"data": [{"id": "treadle-tutor", "max_model_len": 32768}]})

    def do_POST(self) -> None:
        body = orjson.loads(self.rfile.read(int(self.headers["Content-Length"])))
        probed = body["prompt"] in STOP_TEXTS
        if body.get("stop") and not probed:
            self.server.requested_at = self.server.requested_at or time.perf_counter()
            self.server.requested.set()
            return
        text = "abc" if probed else "x"  # the preflight stops at c
        choice = {"index": 0, "text": text, "token_ids": list(text.encode()), "finish_reason": "stop"}
        self._reply({"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": len(text)}})

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _reply(self, value: dict[str, Any]) -> None:
        body = orjson.dumps(value)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def until_first_request(folder: Path) -> tuple[float, float, int]:
    """Return seconds from process start to its first new request, the CPU seconds, and its peak memory in KiB."""
    with FirstRequest() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        started = time.perf_counter()
        with start_child("resume_stage", folder, url) as child:
            while not server.requested.wait(0.1):
                if child.poll() is not None:
                    raise SystemExit(f"resume_stage ended with {child.returncode} and asked for nothing")
            peak_kib, cpu_s = memory_kib("VmHWM", child.pid), cpu_seconds(child.pid)
            child.kill()
        server.shutdown()
    return server.requested_at - started, cpu_s, peak_kib


def main() -> None:
    """Parse the options, measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=200_000)
    parser.add_argument("--open", type=int, default=64)
    run_command(parser, (resume_stage, read_plainly), resume)


if __name__ == "__main__":
    main()
