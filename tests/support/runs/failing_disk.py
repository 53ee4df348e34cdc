"""A small complete run on a failing disk: an emulation that fails at any step, or a real one that is full."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.runs.command_line import Done, environment
from support.runs.crash_bench import (
    ROLLOUTS,
    RUN,
    TUTOR_CONFIG,
    CrashBench,
    Turn,
    artifact_files,
    crash_bench,
    recorded_turns,
    run_of,
    turns_of,
)
from support.runs.faults import Fault

_CONFIG = """
[environment]
python.enabled = false
search = {{ corpus = ["{folder}/world/corpus.jsonl"], cache_folder = "outputs/indexes", top_n = 1 }}

[rollouts]
max_concurrent = 1
sampling = {{ max_tokens = 256 }}

[scores]
symbolic = false

[report]
bootstrap_samples = 100
"""
COMMAND = ("run", "run.toml", "--run", RUN)
STAGES = ("1/questions", str(ROLLOUTS), "1/scores@tutor", "1/report")


@dataclass(frozen=True, slots=True)
class FailingDisk:
    """A folder in memory with a world and its tutor, and a process in a mount namespace of its own that works there."""

    folder: Path
    bench: CrashBench
    process: subprocess.Popen[str]

    @property
    def desk(self) -> Path:
        """Return the working directory of the commands."""
        return self.folder / "desk"

    @property
    def root(self) -> Path:
        """Return the root of runs and artifacts as seen by the commands."""
        return Path(f"/proc/{self.process.pid}/root{self.desk}/outputs")

    def set_up(self) -> None:
        """Lay out an empty desk."""
        self.desk.mkdir()
        (self.desk / "run.toml").write_text(
            (TUTOR_CONFIG + _CONFIG).format(folder=self.bench.folder, url=self.bench.url)
        )
        (self.desk / "outputs").mkdir()

    def treadle(self, *arguments: str, file_bytes: int = 0) -> Done:
        """Run a command to its end."""
        return self._done(argv=arguments, file_bytes=file_bytes)

    def suffer(self, fault: Fault | None) -> tuple[Done, list[str]]:
        """Run to the end on a disk that fails once; return the steps that it took as well."""
        asked = None if fault is None else {"at": fault.at, "kind": fault.kind}
        done = self._done(argv=COMMAND, file_bytes=0, fault=asked, disk=str(self.folder), steps=str(self._steps))
        return done, self._steps.read_text().splitlines()

    def mounted(self, *options: str) -> None:
        """Give the commands, and them alone, a disk of its own for the root; `options` are those of tmpfs."""
        self._program("mount", "-t", "tmpfs", "-o", ",".join(options), "none", str(self.desk / "outputs"))

    def remounted(self, *options: str) -> None:
        """Change that disk."""
        self._program("mount", "-o", ",".join(("remount", *options)), str(self.desk / "outputs"))

    def cleared(self) -> None:
        """Take the desk away, with the disk that may be mounted there."""
        if (self.root.stat().st_dev) != self.desk.stat().st_dev:
            self._program("umount", "--lazy", str(self.desk / "outputs"))
        shutil.rmtree(self.desk)

    def _program(self, *words: str) -> None:
        code = self._ask(program=words)
        assert code == 0, f"{' '.join(words)} ended with {code}"

    @property
    def _steps(self) -> Path:
        return self.folder.with_name(self.folder.name + ".steps")

    def _done(self, **request: object) -> Done:
        code = self._ask(folder=str(self.desk), env=environment(), **request)
        return Done(code, (self.desk / ".out").read_text(), (self.desk / ".err").read_text())

    def _ask(self, **request: object) -> int:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


def namespaces() -> str:
    """Return why this system gives us no mount namespace; empty if it does."""
    tried = subprocess.run([*unshare(), "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, text=True)
    return tried.stderr.strip()


def unshare() -> list[str]:
    """Return the prefix that runs a command in its own mount namespace."""
    return ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]


@contextmanager
def in_memory() -> Iterator[FailingDisk]:
    """Make the world and start its tutor and the process, for the length of a block.

    In memory where that can be: forcing thousands of files to a real disk takes long, and shows nothing more.
    """
    command = [
        *([] if namespaces() else unshare()),
        sys.executable,
        str(Path(__file__).with_name("faulty_treadle.py")),
    ]
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as name:
        folder = Path(name) / "disk"
        (folder / "inputs").mkdir(parents=True)
        with (
            crash_bench(folder / "inputs", documents=100, questions=4, latency_s=0.0) as bench,
            subprocess.Popen(
                command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as process,
        ):
            assert process.stdout is not None and process.stdout.readline() == "0\n"
            yield FailingDisk(folder, bench, process)


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """Results and files of the run on a working disk."""

    steps: list[str]
    files: dict[str, str]
    turns: dict[int, Turn]
    """Seed of a request -> which one it is."""
    requests: dict[Turn, str]
    """Request -> digest of its content."""


def undisturbed_run(disk: FailingDisk) -> Undisturbed:
    """Run once, on a sound disk."""
    begin = disk.bench.log_end()
    disk.set_up()
    done, steps = disk.suffer(None)
    done.succeeded()
    check_tidy(disk.root)
    turns = turns_of(disk.root)
    arrivals = disk.bench.arrivals(begin, disk.bench.log_end())
    requests = {turns[arrival.seed]: arrival.digest for arrival in arrivals}
    assert len(requests) == len(arrivals) == len(turns)
    files = artifact_files(disk.root)
    disk.cleared()
    return Undisturbed(steps, files, turns, requests)


def check_failure(disk: FailingDisk, done: Done, undisturbed: Undisturbed) -> str:
    """Check for one line with location and remedy or, if nothing was lost, the whole result; return the line."""
    assert "Traceback" not in done.err, done.err
    if done.code == 0:
        assert artifact_files(disk.root) == undisturbed.files
        return ""
    line = done.failed()
    assert any(place in line for place in (f"{disk.folder}/", "artifacts/", "outputs/", "run.toml")), line
    assert not any(word in line for word in ("OSError", "Errno", "the traceback is in")), line
    return line


def check_states(root: Path, undisturbed: Undisturbed) -> None:
    """Check that every file is complete and correct: the old version, the new one, or absent."""
    digests = {Path(name).parts[1] for name in undisturbed.files}
    assert {path.name for path in root.glob("artifacts/*/[!.]*")} <= digests
    run = run_of(root)
    if run is None:
        return
    assert not any(run.verify().values())
    for record in run.records():
        assert {ref.digest for ref in record.outputs.values()} <= digests
        for ref in record.outputs.values():
            assert len(list(run.rows(ref).rows())) == ref.num_rows
    for status in run.statuses():
        assert status.state in ("completed", "failed", "crashed"), status
        assert bool(status.num_rows) == (status.state == "completed"), status


def check_resumed(disk: FailingDisk, undisturbed: Undisturbed) -> None:
    """Check that the same command resumes on a working disk: same bytes, no repeated request, no leftovers."""
    known = recorded_turns(disk.root, list(undisturbed.requests))
    begin = disk.bench.log_end()
    disk.treadle(*COMMAND).succeeded()
    arrivals = disk.bench.arrivals(begin, disk.bench.log_end())
    asked = {undisturbed.turns[arrival.seed]: arrival.digest for arrival in arrivals}
    assert len(asked) == len(arrivals) and asked.items() <= undisturbed.requests.items()
    assert not known & asked.keys(), "asked again although its answer was in the journal"
    assert artifact_files(disk.root) == undisturbed.files
    check_tidy(disk.root)


def check_tidy(root: Path) -> None:
    """Check that the run is reported as finished and no work files remain."""
    run = run_of(root)
    assert run is not None and {status.state for status in run.statuses()} == {"completed"}
    assert not [path for path in root.rglob(".tmp-*")]
    assert not list(root.glob(f"runs/{RUN}/journal/*/*/*"))
    assert not list(root.glob(f"runs/{RUN}/attempts/*/*/*/work"))
