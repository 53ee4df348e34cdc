"""A bench for crash tests: one tutor that outlives all runs, `treadle run` as a process, and what both left behind."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.runs.processes import end_family, until

from treadle.core.journal.journal import Journal
from treadle.core.runs.address import Address
from treadle.core.runs.run import Run, list_runs
from treadle.core.seeds import derive_seed
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.demo.world_files import write_world

RUN = "crash"
ROLLOUTS = Address.parse("1/rollouts@tutor")
CONCURRENCY = 16
TREADLE = str(Path(sys.executable).with_name("treadle"))
END_S = 300.0
"""Only a run that hangs takes longer."""

TUTOR_CONFIG = """
seed = 7

[models.tutor]
model = "treadle-tutor"
tokenizer = "{folder}/tokenizer"
endpoints = [{{ url = "{url}" }}]
hedge_floor_s = 3600.0  # What a stopped process asks twice when it goes on is not what is counted here.

[questions]
sources = [{{ path = "{folder}/world/questions.jsonl", source_field = "source", split_field = "split" }}]

[questions.domains]
world-lookup = "qa"
world-hops = "qa"
world-compare = "qa"
world-compute = "math"
world-arithmetic = "math"
"""
"""The beginning of a run's configuration: its tutor and its questions; `folder` and `url` are those of the bench."""

_CONFIG = """
[environment.search]
corpus = ["{folder}/world/corpus.jsonl"]
cache_folder = "{root}/indexes"
top_n = 1
document_chars = 200

[environment.python.sandbox]
packages = []
pool_size = 2
max_running = 2

[rollouts]
max_concurrent = {concurrency}
sampling = {{ max_tokens = 256 }}
"""

Turn = tuple[str, int]
"""A request of a run: owner of its job, and number of the turn."""

Unit = tuple[str, str]
"""An answer in a journal: its owner's key, and its name there."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that reached the tutor; `served` if it was answered with 200."""

    serial: int
    seed: int
    digest: str
    served: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """Requests and results of an undisturbed run, with which every other run is compared."""

    seconds: float
    turns: dict[int, Turn]
    """Seed of a request -> which one it is."""
    requests: dict[Turn, str]
    """Request -> digest of its content."""
    keys: list[str]
    """Keys of the rollouts, in the order of their rows."""
    files: dict[str, str]
    """All files of all artifacts, with their hashes."""


class CrashBench:
    """A small world, and a tutor that writes down what reaches it."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url

    def start(self, root: Path, *command: str) -> subprocess.Popen[bytes]:
        """Start `treadle run` (or another command of the run) in a session of its own, its words in a file."""
        root.mkdir(parents=True, exist_ok=True)
        config = root / "config.toml"
        if not config.exists():
            text = (TUTOR_CONFIG + _CONFIG).format(folder=self.folder, url=self.url, root=root, concurrency=CONCURRENCY)
            config.write_text(text)
        words = command or ("run", str(config))
        with (root / "stderr.txt").open("wb") as said:
            return subprocess.Popen(
                [TREADLE, *words, "--run", RUN, "--root", str(root), "--json"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                env={**os.environ, "TREADLE_TRACEBACK": "1"},
                start_new_session=True,
            )

    @contextmanager
    def life(self, root: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
        """Yield a started run, of which nothing is left when a test ends in the middle of it."""
        process = self.start(root, *command)
        try:
            yield process
        finally:
            if process.poll() is None:
                end_family(process)

    def finish(self, root: Path, *command: str) -> None:
        """Run to the end."""
        with self.life(root, *command) as process:
            assert process.wait(timeout=END_S) == 0, said(root)

    def log_end(self) -> int:
        """Return the length of the request log once every sent request has been answered.

        Requests of a killed client are already in the tutor's sockets, and are read before the connection of a later
        request.
        """
        quiet = [False, False, False]

        def idle() -> bool:
            with urllib.request.urlopen(self.url.removesuffix("/v1") + "/log/counts", timeout=30) as reply:
                quiet.append(json.load(reply)["in_flight"] == 0)
            return all(quiet[-3:])

        until(idle, "the tutor has answered everything")
        return self.log_size()

    def log_size(self) -> int:
        """Length of the request log now."""
        return self._log.stat().st_size

    def arrivals(self, begin: int, end: int) -> list[Arrival]:
        """Return the requests of one part of the log, without those of the preflight, which have seed 0."""
        with self._log.open("rb") as log:
            log.seek(begin)
            whole, _, _ = log.read(end - begin).rpartition(b"\n")  # the last line may be in the middle of being written
        lines = [json.loads(line) for line in whole.splitlines()]
        served = {line["serial"] for line in lines if line["event"] == "answered" and line["status"] == "200"}
        return [
            Arrival(line["serial"], line["seed"], line["digest"], line["serial"] in served)
            for line in lines
            if line["event"] == "arrived" and line["seed"]
        ]

    @property
    def _log(self) -> Path:
        return self.folder / "requests.jsonl"


@contextmanager
def crash_bench(folder: Path, *, documents: int, questions: int, latency_s: float = 0.02) -> Iterator[CrashBench]:
    """Make a world with these numbers of documents and questions, and run a noisy tutor for the length of a block."""
    write_world(
        folder / "world", documents=documents, questions=questions // 2, heldout_questions=questions // 2, tiers=(0, 1)
    )
    write_byte_tokenizer(folder / "tokenizer")
    command = [sys.executable, "-m", "treadle.demo.tutor", "--persona", "noisy", "--latency-s", str(latency_s)]
    command += ["--jitter-s", str(2 * latency_s), "--request-log", str(folder / "requests.jsonl")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as tutor:
        assert tutor.stdout is not None
        try:
            yield CrashBench(folder, json.loads(tutor.stdout.readline())["url"])
        finally:
            tutor.kill()


def said(root: Path) -> str:
    """Return what the last process wrote to its standard error."""
    return (root / "stderr.txt").read_text()


def run_of(root: Path) -> Run | None:
    """Return the run, or None if its process was killed before creating it."""
    return Run.open(root, RUN) if RUN in list_runs(root) else None


def rollout_rows(root: Path, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of the finished rollouts."""
    run = Run.open(root, RUN)
    record = run.record(ROLLOUTS)
    assert record is not None
    return list(run.rows(record.outputs["rollouts"]).rows(columns))


def turns_of(root: Path) -> dict[int, Turn]:
    """Seed -> request, for all requests of a finished run."""
    rows = rollout_rows(root, ["job", "seed", "num_turns"])
    every = [(row["job"], row["seed"], turn) for row in rows for turn in range(row["num_turns"])]
    turns = {derive_seed(seed, turn): (key, turn) for key, seed, turn in every}
    assert len(turns) == len(every), "two requests share a seed: choose another seed for the run"
    return turns


def recorded_turns(root: Path, turns: Sequence[Turn]) -> set[Turn]:
    """Return the requests answered in the journal of the rollouts, or in the artifact that followed it."""
    units = {(owner, f"llm-{turn}"): (owner, turn) for owner, turn in turns}
    return {units[unit] for unit in recorded(root, ROLLOUTS, units)}


def recorded(root: Path, address: Address, units: Iterable[Unit]) -> set[Unit]:
    """Return the answers in a stage's journal, in its finished jobs, or in its artifact."""
    run = run_of(root)
    if run is None:
        return set()
    if run.record(address) is not None:
        return set(units)
    attempts = run.attempts(address)
    if not attempts:
        return set()
    folder = run.storage.directory(run.journal_key(address, attempts[-1].journal_name))
    if not folder.is_dir():
        return set()
    with tempfile.TemporaryDirectory(prefix="treadle-test-") as copy:
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        with Journal(Path(copy)) as journal:
            assert journal.num_damaged == 0
            return {
                (owner, unit)
                for owner, unit in units
                if journal.is_finished(owner) or journal.get(owner, unit) is not None
            }


def artifact_files(root: Path) -> dict[str, str]:
    """Every file below `artifacts`, with its hash: digests, parquet bytes, cards and manifests at once."""
    folder = root / "artifacts"
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
