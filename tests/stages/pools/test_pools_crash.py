"""`pools` and `sft_rows` killed at random moments: no answer that was recorded is asked for again, and the same bytes.

TREADLE_KILL_POINTS sets the kills (an eighth of them here, at least 2; over chat half as many), TREADLE_KILL_SEED
repeats the moments.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.runs.crash_bench import CrashBench, Unit, artifact_files, crash_bench, recorded, run_of, said
from support.runs.processes import kill_alone, until

from treadle.core.runs.address import Address
from treadle.core.seeds import derive_seed
from treadle.datagen.pools.events import INITIAL
from treadle.datagen.pools.settings import DEFAULT_OPERATORS

KILLS = max(2, int(os.environ.get("TREADLE_KILL_POINTS", "2")) // 8)
NUM_QUESTIONS = {"completions": 24, "chat": 8}
KILLS_PER_RUN = 5
SEED = 7
"""The run's, see `crash_bench`."""
POOLS = Address.parse("1/pools")
MOST_IN_FLIGHT = 4 * 3
"""Questions at once, each with the operators of one branch."""


def command(root: Path, bench: CrashBench, route: str) -> tuple[str, ...]:
    changes = ['flow.stages=["pools","sft_rows"]', "pools.max_concurrent=4", "pools.rounds=2"]
    if route == "chat":
        rows = f'sft_rows.tokenizer="{bench.folder}/tokenizer"'
        changes += ['models.tutor.api="chat"', rows, f"pools.max_questions={NUM_QUESTIONS['chat']}"]
    return ("run", str(root / "config.toml"), *(word for change in changes for word in ("--set", change)))


def units_by_seed(keys: dict[str, str]) -> dict[int, Unit]:
    """Return the unit that stores the answer, by the seed of each request that `pools` may send.

    `keys`: question key -> owner of its job.
    """
    found: dict[int, Unit] = {}
    for key, job in keys.items():
        applied = [(INITIAL, 0, 0)]
        names = (*DEFAULT_OPERATORS, "find-locate_flaw")
        applied += [(name, number, parent) for name in names for number in (1, 2, 3) for parent in range(10)]
        for name, number, parent in applied:
            seed = derive_seed(SEED, key, "pools", name, number, parent)
            for turn in range(24):
                found[derive_seed(seed, turn)] = (job, f"{number}-{name}-{parent}/llm-{turn}")
                found[derive_seed(seed, "ask", turn)] = (job, f"{number}-{name}-{parent}/ask-{turn}")
    return found


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashBench]:
    folder = tmp_path_factory.mktemp("pools-crash")
    with crash_bench(folder, documents=400, questions=2 * NUM_QUESTIONS["completions"], latency_s=0.01) as started:
        yield started


@pytest.mark.covers("flywheel-25", "flywheel-31")
@pytest.mark.parametrize("route", ["completions", "chat"])
def test_killed_pools_repeat_no_request_and_end_with_the_same_bytes(
    bench: CrashBench, tmp_path: Path, capsys: pytest.CaptureFixture[str], route: str
) -> None:
    moment_seed = int(os.environ.get("TREADLE_KILL_SEED") or int.from_bytes(os.urandom(4), "big"))
    moments = random.Random(moment_seed)
    calm = tmp_path / "undisturbed"
    began = time.monotonic()
    begin = bench.log_end()
    bench.finish(calm, *command(calm, bench, route))
    whole_s = time.monotonic() - began
    run = run_of(calm)
    assert run is not None and (record := run.record(POOLS)) is not None
    rows = run.rows(record.outputs["pool_questions"]).rows(["question_key", "job"])
    keys = {row["question_key"]: row["job"] for row in rows}
    assert len(keys) == NUM_QUESTIONS[route]
    expected = Counter(arrival.seed for arrival in bench.arrivals(begin, bench.log_end()))
    by_seed = units_by_seed(keys)
    known = {by_seed[seed] for seed in expected if seed in by_seed}
    assert len(known) > 0.9 * len(expected), "all but verdicts have a place"
    most = KILLS if route == "completions" else KILLS // 2
    kills = repeated = lost = 0
    while kills < most:
        root = tmp_path / str(kills)
        asked: Counter[int] = Counter()
        safe: set[Unit] = set()
        for life in range(KILLS_PER_RUN + 1):
            begin = bench.log_end()
            with bench.life(root, *command(root, bench, route)) as process:
                last = life == KILLS_PER_RUN or kills == most
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=300.0 if last else moments.uniform(0.1, 0.6) * whole_s)
                orphans = kill_alone(process)
                assert orphans is not None or process.returncode == 0, said(root)
            until(lambda seen=orphans: not any(one.lives() for one in seen or ()), "the end of its children", 30.0)
            arrived = Counter(arrival.seed for arrival in bench.arrivals(begin, bench.log_end()))
            again = {by_seed[seed] for seed in arrived if seed in by_seed} & safe
            assert not again, f"TREADLE_KILL_SEED={moment_seed}: asked although recorded: {sorted(again)[:3]}"
            asked.update(arrived)
            if orphans is None:
                break
            kills += 1
            sent = {by_seed[seed] for seed in asked if seed in by_seed}
            safe = recorded(root, POOLS, sent)
            unrecorded = len({by_seed[seed] for seed in arrived if seed in by_seed} - safe)
            assert unrecorded <= MOST_IN_FLIGHT
            lost += unrecorded
        assert set(asked) == set(expected)
        repeated += asked.total() - len(asked)
        assert artifact_files(root) == artifact_files(calm)
        shutil.rmtree(root)
    assert repeated <= lost + kills, "only what was in flight is asked twice (verdicts: at most one per kill)"
    with capsys.disabled():
        print(f"\n{kills} kills: {repeated} requests sent twice, {lost} in flight; {time.monotonic() - began:.0f} s")
