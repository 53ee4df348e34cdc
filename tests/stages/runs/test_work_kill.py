"""Helpers of a run (`treadle work`) and the run itself killed at random moments: the same bytes, nothing asked again.

TREADLE_KILL_POINTS sets the number of kills (a tenth of them here, at least 2), TREADLE_KILL_SEED repeats the moments.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.runs.crash_bench import (
    ROLLOUTS,
    CrashBench,
    Turn,
    artifact_files,
    crash_bench,
    rollout_rows,
    run_of,
    said,
    turns_of,
)
from support.runs.processes import end_family, kill_alone, remaining, until

from treadle.core.journal.journal import Journal
from treadle.core.store.leases import holder_of

KILLS = max(2, int(os.environ.get("TREADLE_KILL_POINTS", "20")) // 10)
KILLS_PER_RUN = 5
NUM_QUESTIONS, NUM_SHARDS, CONCURRENCY = 40, 6, 2
SETTINGS = (
    f"rollouts.shards={NUM_SHARDS}",
    f"rollouts.max_concurrent={CONCURRENCY}",
    "environment.search.enabled=false",
    "environment.python.enabled=false",
)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashBench]:
    folder = tmp_path_factory.mktemp("work-kill")
    with crash_bench(folder, documents=100, questions=NUM_QUESTIONS, latency_s=0.05) as started:
        yield started


def command(root: Path) -> tuple[str, ...]:
    return ("run", str(root / "config.toml"), *(word for setting in SETTINGS for word in ("--set", setting)))


def recorded(root: Path, turns: dict[int, Turn]) -> set[Turn]:
    """Return the requests answered in the journals of all shards or in the result; other processes may be running."""
    run = run_of(root)
    if run is None or not (attempts := run.attempts(ROLLOUTS)):
        return set()
    if run.record(ROLLOUTS) is not None:
        return set(turns.values())
    folder = run.storage.directory(run.journal_key(ROLLOUTS, attempts[-1].journal_name))
    found: set[Turn] = set()
    for part in {path.parent for path in folder.rglob("*.journal")}:
        with tempfile.TemporaryDirectory(prefix="treadle-test-") as copy:
            for path in part.glob("*.journal"):
                with suppress(FileNotFoundError):  # The run ends meanwhile.
                    shutil.copy(path, copy)
            with Journal(Path(copy)) as journal:
                found.update(
                    (owner, turn)
                    for owner, turn in turns.values()
                    if journal.is_finished(owner) or journal.get(owner, f"llm-{turn}") is not None
                )
    return found


def shard_holders(root: Path) -> set[int]:
    """Return the processes that hold a shard."""
    run = run_of(root)
    if run is None or not (attempts := run.attempts(ROLLOUTS)):
        return set()
    shards = run.shards(ROLLOUTS, attempts[-1].journal_name)
    found = (holder_of(run.storage, shards.lock_key(index)) for index in range(NUM_SHARDS))
    return {holder.pid for holder in found if holder is not None}


def wait_for_shard(root: Path, process: subprocess.Popen[bytes], run: subprocess.Popen[bytes]) -> None:
    """Wait until a process holds a shard, or the run has ended."""
    until(lambda: process.pid in shard_holders(root) or run.poll() is not None, "it has a shard", pause_s=0.05)


@pytest.mark.covers("flywheel-25")
def test_killed_helpers_and_runs_lose_nothing_and_repeat_no_request(
    bench: CrashBench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("TREADLE_KILL_SEED") or int.from_bytes(os.urandom(4), "big"))
    print(f"TREADLE_KILL_SEED={seed}")
    moments, began, calm = random.Random(seed), time.monotonic(), tmp_path / "calm"
    bench.finish(calm, *command(calm))
    whole_s, turns = time.monotonic() - began, turns_of(calm)
    keys = [row["rollout_key"] for row in rollout_rows(calm, ["rollout_key"])]
    killed: Counter[str] = Counter()
    num_runs = num_twice = 0
    while killed.total() < KILLS:
        root = tmp_path / str(num_runs)
        num_runs += 1
        first = bench.log_end()
        known: set[Turn] = set()
        seen_to = first
        processes: dict[str, subprocess.Popen[bytes]] = {}
        kills = 0
        try:
            while True:
                for name, words in {"run": command(root), "helper": ("work", "--wait")}.items():
                    if name not in processes or (processes[name].returncode or 0) < 0:
                        processes[name] = bench.start(root, *words)
                if kills == KILLS_PER_RUN or killed.total() == KILLS:
                    break
                name = moments.choice(("helper", "helper", "run"))
                if moments.random() < 0.8:
                    wait_for_shard(root, processes[name], processes["run"])
                with suppress(subprocess.TimeoutExpired):
                    processes["run"].wait(moments.uniform(0.0, 0.3) * whole_s)
                works = processes[name].pid in shard_holders(root)
                left = kill_alone(processes[name])
                if left is None:
                    break
                kills += 1
                killed[f"{name} at a shard" if works else name] += 1
                until(lambda seen=left: not remaining(seen), "the end of its children", 30.0)
                assert processes[name].pid not in shard_holders(root)
                # Read this first: requests recorded by now are not repeated later.
                now = recorded(root, turns)
                assert known <= now, "the journals lost something"
                check_new(bench, seen_to, known, turns, seed)
                known, seen_to = now, bench.log_size()
            assert processes["run"].wait(300.0) == 0, said(root)
            # It polls for more work, and would end by itself.
            orphans = kill_alone(processes["helper"]) or []
            until(lambda seen=orphans: not remaining(seen), "the end of its children", 30.0)
        finally:
            for process in processes.values():
                if process.poll() is None:
                    end_family(process)
        check_new(bench, seen_to, known, turns, seed)
        asked = Counter(arrival.seed for arrival in bench.arrivals(first, bench.log_end()))
        assert set(asked) == set(turns)
        twice = asked.total() - len(asked)
        assert twice <= kills * CONCURRENCY, "only what was in flight is asked again"
        num_twice += twice
        assert [row["rollout_key"] for row in rollout_rows(root, ["rollout_key"])] == keys
        assert artifact_files(root) == artifact_files(calm)
        run = run_of(root)
        assert run is not None and {status.state for status in run.statuses()} == {"completed"}
        assert not list((root / "runs").rglob("*.journal"))
        shutil.rmtree(root)
    with capsys.disabled():
        told = ", ".join(f"{count} of the {name}" for name, count in sorted(killed.items()))
        print(f"\n{killed.total()} kills ({told}) in {num_runs} runs: {num_twice} requests asked twice; ", end="")
        print(f"{time.monotonic() - began:.0f} s")


def check_new(bench: CrashBench, begin: int, known: set[Turn], turns: dict[int, Turn], seed: int) -> None:
    """Nothing that was recorded before has been asked since."""
    asked = {turns[arrival.seed] for arrival in bench.arrivals(begin, bench.log_size())}
    assert not known & asked, f"TREADLE_KILL_SEED={seed}: asked again although its answer was in a journal"
