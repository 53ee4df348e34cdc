"""`treadle run` on an object root: killed at random moments, resumed, and compared with a local run.

A tenth of TREADLE_KILL_POINTS kills are tried; TREADLE_KILL_SEED repeats the random moments of an earlier test.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.runs.crash_bench import (
    CONCURRENCY,
    ROLLOUTS,
    RUN,
    TREADLE,
    artifact_files,
    crash_bench,
    recorded_turns,
    said,
    turns_of,
)
from support.runs.processes import end_family, kill_alone, until

from treadle.core.runs.run import Run
from treadle.core.store.roots import open_storage

NUM_KILLS = max(2, int(os.environ.get("TREADLE_KILL_POINTS", "2")) // 10)


@contextmanager
def life(folder: Path, root: str) -> Iterator[subprocess.Popen[bytes]]:
    """`treadle run` with the configuration in a folder, on a root elsewhere."""
    words = [TREADLE, "run", str(folder / "config.toml"), "--run", RUN, "--root", root, "--json"]
    with (folder / "stderr.txt").open("wb") as stderr:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            end_family(process)


def object_files(root: str) -> dict[str, str]:
    """As `artifact_files`."""
    storage = open_storage(root)
    contents = {key.removeprefix("artifacts/"): storage.get(key) or b"" for key in storage.keys("artifacts")}
    return {key: hashlib.sha256(content).hexdigest() for key, content in sorted(contents.items())}


@pytest.mark.sweep
def test_killed_object_store_run_matches_an_undisturbed_local_one(object_root: str, tmp_path: Path) -> None:
    seed = int(os.environ.get("TREADLE_KILL_SEED") or int.from_bytes(os.urandom(4), "big"))
    print(f"TREADLE_KILL_SEED={seed}")
    moments, local = random.Random(seed), tmp_path / "local"
    with crash_bench(tmp_path, documents=100, questions=60) as bench:
        bench.finish(local)
        turns, end = turns_of(local), bench.log_end()
        total = len(bench.arrivals(0, end))
        known: set[tuple[str, int]] = set()
        for left in range(NUM_KILLS, -1, -1):
            begin = end
            with life(local, object_root) as process:
                if left:
                    size = moments.randrange(1, total // NUM_KILLS)
                    until(
                        lambda begin=begin, size=size, process=process: (  # type: ignore[misc]
                            len(bench.arrivals(begin, bench.log_size())) >= size or process.poll() is not None
                        ),
                        "requests",
                    )
                    assert kill_alone(process) is not None or process.returncode == 0, said(local)
                else:
                    assert process.wait(timeout=300.0) == 0, said(local)
            end = bench.log_end()
            asked = {turns[arrival.seed] for arrival in bench.arrivals(begin, end)}
            assert not asked & known, "asked again although its answer was in the journal"
            now = recorded_turns(object_root, list(turns.values()))  # type: ignore[arg-type]
            assert known <= now and len(asked - now) <= CONCURRENCY
            known = now
        assert known == set(turns.values())
    run = Run.open(object_root, RUN)
    assert {status.state for status in run.statuses()} == {"completed"}
    assert object_files(object_root) == artifact_files(local)
    assert run.record(ROLLOUTS) is not None
    assert not list(run.storage.keys(f"runs/{RUN}/journal"))
    assert not list(run.storage.directory("").rglob("*.journal"))
