"""Runs killed at random moments, resumed, and compared with an undisturbed run.

TREADLE_KILL_POINTS sets the number of kills (3), TREADLE_KILL_SEED repeats the random moments of an earlier test.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.runs.crash_bench import (
    CONCURRENCY,
    ROLLOUTS,
    RUN,
    Arrival,
    CrashBench,
    Outcome,
    Turn,
    artifact_files,
    crash_bench,
    recorded_turns,
    rollout_rows,
    run_of,
    said,
    turns_of,
)
from support.runs.processes import Seen, freeze, kill_alone, thaw, until

KILL_POINTS = int(os.environ.get("TREADLE_KILL_POINTS", "3"))
PARTS = 2 if KILL_POINTS >= 40 else 1
"""Many kills are shared by two processes of pytest; few are better spread over one."""
NUM_QUESTIONS = 120
KILLS_PER_RUN = 4
LONGEST_LIVES = (0.5, 1.2)
"""In undisturbed runs. What was recorded is kept: many short lives try one stretch often, long ones reach the end."""

MEETING_S = 0.2
"""A kill this long after a first request meets requests."""


@dataclass(slots=True)
class Life:
    """One process of a run: its requests, and what was recorded after its end."""

    killed: bool
    seconds: float
    arrivals: list[Arrival]
    recorded: set[Turn]


@dataclass(slots=True)
class Tally:
    """Totals over all kills of a test."""

    kills: int = 0
    runs: int = 0
    in_flight: list[int] = field(default_factory=list)
    served_twice: int = 0
    moments: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return (
            f"{self.kills} kills in {self.runs} runs: {self.served_twice} requests served twice, "
            f"{sum(self.in_flight)} in flight at the kills (most: {max(self.in_flight, default=0)}); "
            + ", ".join(f"{count} at {moment}" for moment, count in sorted(self.moments.items()))
        )


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashBench]:
    with crash_bench(tmp_path_factory.mktemp("crash"), documents=200, questions=NUM_QUESTIONS) as started:
        yield started


@pytest.fixture(scope="module")
def undisturbed(bench: CrashBench) -> Outcome:
    root = bench.folder / "undisturbed"
    began = time.monotonic()
    bench.finish(root)
    seconds = time.monotonic() - began
    turns = turns_of(root)
    arrivals = bench.arrivals(0, bench.log_end())
    requests = {turns[arrival.seed]: arrival.digest for arrival in arrivals}
    assert len(requests) == len(arrivals) == len(turns)
    keys = [row["rollout_key"] for row in rollout_rows(root, ["rollout_key"])]
    assert len(keys) == len(set(keys)) == NUM_QUESTIONS
    return Outcome(seconds, turns, requests, keys, artifact_files(root))


@pytest.fixture
def moments(capsys: pytest.CaptureFixture[str]) -> random.Random:
    seed = int(os.environ.get("TREADLE_KILL_SEED") or int.from_bytes(os.urandom(4), "big"))
    print(f"TREADLE_KILL_SEED={seed}")
    return random.Random(seed)


def live(
    bench: CrashBench, root: Path, undisturbed: Outcome, kill_after_s: float | None, *, from_request: bool = False
) -> Life:
    """Let a process of the run live for this long, or for this long after its first request, or to its end."""
    begin, began = bench.log_end(), time.monotonic()
    with bench.life(root) as process:
        if from_request:
            until(lambda: bench.arrivals(begin, bench.log_size()) or process.poll() is not None, "a request")
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=300.0 if kill_after_s is None else kill_after_s)
        orphans = kill_alone(process)
        assert orphans is not None or process.returncode == 0, said(root)
    seconds = time.monotonic() - began
    wait_until_orphans_end(orphans or [])
    arrivals = bench.arrivals(begin, bench.log_end())
    return Life(orphans is not None, seconds, arrivals, recorded_turns(root, list(undisturbed.requests)))


def wait_until_orphans_end(orphans: list[Seen]) -> None:
    """Wait for the processes that a killed one had started to end by themselves."""
    until(lambda: not any(seen.lives() for seen in orphans), f"the end of {[seen.name for seen in orphans]}", 30.0)


def moment_of(root: Path) -> str:
    """Return what a killed run was doing."""
    run = run_of(root)
    states = {} if run is None else {status.address: status.state for status in run.statuses()}
    assert not {"running", "failed", "interrupted"} & set(states.values()), states
    crashed = [address for address, state in states.items() if state == "crashed"]
    assert len(crashed) <= 1, states
    return crashed[0] if crashed else "no stage"


def check_kill(life: Life, undisturbed: Outcome, tally: Tally) -> None:
    """Only what was in flight is missing from the journal: at most one request per rollout, its latest."""
    latest: dict[str, int] = {}
    for arrival in life.arrivals:
        owner, turn = undisturbed.turns[arrival.seed]
        latest[owner] = max(turn, latest.get(owner, 0))
    unrecorded = {undisturbed.turns[arrival.seed] for arrival in life.arrivals} - life.recorded
    assert all(latest[owner] == turn for owner, turn in unrecorded)
    assert len(unrecorded) <= CONCURRENCY
    tally.in_flight.append(len(unrecorded))


def check_requests(lives: list[Life], undisturbed: Outcome, tally: Tally) -> None:
    """Nothing recorded is asked again, nothing is left out, and each request is what it would have been."""
    known: set[Turn] = set()
    served: set[Turn] = set()
    asked: set[Turn] = set()
    for life in lives:
        turns = [undisturbed.turns[arrival.seed] for arrival in life.arrivals]
        assert len(turns) == len(set(turns)), "asked twice by one process"
        assert not known & set(turns), "asked again although its answer was in the journal"
        assert [undisturbed.requests[turn] for turn in turns] == [arrival.digest for arrival in life.arrivals]
        now = {turn for turn, arrival in zip(turns, life.arrivals, strict=True) if arrival.served}
        tally.served_twice += len(served & now)
        assert known <= life.recorded, "the journal lost something"
        known, served, asked = life.recorded, served | now, asked | set(turns)
    assert asked == set(undisturbed.requests)


def check_end(root: Path, undisturbed: Outcome) -> None:
    """No row lost or doubled, and the same bytes in every artifact."""
    assert [row["rollout_key"] for row in rollout_rows(root, ["rollout_key"])] == undisturbed.keys
    assert artifact_files(root) == undisturbed.files
    run = run_of(root)
    assert run is not None and {status.state for status in run.statuses()} == {"completed"}
    assert not [path for path in (root / "runs").rglob(".tmp-*") if path.is_dir()]
    assert not list((root / "runs" / RUN / "journal").rglob("*.journal"))


def report(tally: Tally, began: float, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{tally}; {time.monotonic() - began:.0f} s")


def is_enough(tally: Tally, num_kills: int) -> bool:
    """Return whether there were enough kills; a few at random moments may all miss the requests, and more follow."""
    return tally.kills >= num_kills and (sum(tally.in_flight) > 0 or tally.kills >= 5 * num_kills)


@pytest.mark.covers("flywheel-25", "evaluation-18")
@pytest.mark.parametrize("part", range(PARTS))
def test_run_killed_at_random_moments_matches_an_undisturbed_one(
    part: int,
    bench: CrashBench,
    undisturbed: Outcome,
    moments: random.Random,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tally, began, whole_s = Tally(), time.monotonic(), undisturbed.seconds
    num_kills = KILL_POINTS // PARTS
    while not is_enough(tally, num_kills):
        root = tmp_path / str(tally.runs)
        tally.runs += 1
        longest_s = moments.choice(LONGEST_LIVES) * whole_s
        lives: list[Life] = []
        while not lives or (lives[-1].killed and len(lives) <= KILLS_PER_RUN):
            last = len(lives) == KILLS_PER_RUN or is_enough(tally, num_kills)
            missed = tally.kills >= num_kills  # On a busy machine requests are a short part of a life.
            after_s = None if last else moments.uniform(0, MEETING_S if missed else longest_s)
            lives.append(live(bench, root, undisturbed, after_s, from_request=missed and not last))
            if lives[-1].killed:
                tally.kills += 1
                check_kill(lives[-1], undisturbed, tally)
                moment = moment_of(root)
                tally.moments[moment] = tally.moments.get(moment, 0) + 1
        check_requests(lives, undisturbed, tally)
        check_end(root, undisturbed)
        # On a busy machine the undisturbed run may have been a slow one.
        whole_s = min(whole_s, sum(life.seconds for life in lives))
        shutil.rmtree(root)
    assert tally.served_twice <= sum(tally.in_flight)
    assert sum(tally.in_flight) > 0, "no kill met a request in flight"
    report(tally, began, capsys)


@pytest.fixture(scope="module")
def all_recorded(bench: CrashBench, undisturbed: Outcome) -> Path:
    """Return a run killed when the last rollout was in the journal and none in an artifact."""
    for number in range(10):
        root = bench.folder / f"recorded-{number}"
        with bench.life(root) as process:
            while process.poll() is None:
                if freeze(process):
                    run = run_of(root)
                    full = run is not None and run.status(ROLLOUTS).num_finished == len(undisturbed.keys)
                    if full or (run is not None and run.record(ROLLOUTS) is not None):
                        break
                    thaw(process)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=0.02)
            wait_until_orphans_end(kill_alone(process) or [])
        run = run_of(root)
        if run is not None and run.record(ROLLOUTS) is None and run.status(ROLLOUTS).state == "crashed":
            return root
        shutil.rmtree(root)
    raise AssertionError("the moment between the last rollout and the artifact was missed ten times")


@pytest.mark.covers("flywheel-25")
def test_run_killed_while_writing_and_publishing_rows_loses_none(
    bench: CrashBench,
    undisturbed: Outcome,
    all_recorded: Path,
    moments: random.Random,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tally, began = Tally(), time.monotonic()
    attempt_s = length_of_attempt(bench, all_recorded, tmp_path / "measured")
    while tally.kills < max(1, KILL_POINTS // 2):
        root = tmp_path / str(tally.runs)
        tally.runs += 1
        shutil.copytree(all_recorded, root)
        begin = bench.log_end()
        killed = True
        while killed and tally.kills < max(1, KILL_POINTS // 2):
            killed = kill_in_attempt(bench, root, moments.uniform(0, 1.3 * attempt_s))
            if killed:
                tally.kills += 1
                killed = moment_of(root) == str(ROLLOUTS)
                moment = "work before the record" if killed else "what follows the record"
                tally.moments[moment] = tally.moments.get(moment, 0) + 1
                assert recorded_turns(root, list(undisturbed.requests)) == set(undisturbed.requests)
        bench.finish(root)
        assert bench.arrivals(begin, bench.log_end()) == []
        check_end(root, undisturbed)
        shutil.rmtree(root)
    report(tally, began, capsys)


def wait_for_attempt(process: subprocess.Popen[bytes], root: Path, number: int) -> None:
    """Wait until the rollouts are at their n-th attempt, or the process has ended."""
    folder = root / "runs" / RUN / "attempts" / str(ROLLOUTS) / str(number)
    until(lambda: folder.exists() or process.poll() is not None, f"attempt {number}", pause_s=0.001)


def num_attempts(root: Path) -> int:
    run = run_of(root)
    assert run is not None
    return len(run.attempts(ROLLOUTS))


def length_of_attempt(bench: CrashBench, template: Path, root: Path) -> float:
    """Return how long writing and publishing all recorded rows takes, in seconds."""
    shutil.copytree(template, root)
    run = run_of(root)
    assert run is not None
    with bench.life(root, "stage", str(ROLLOUTS)) as process:
        wait_for_attempt(process, root, num_attempts(root) + 1)
        began = time.monotonic()
        until(lambda: run.record(ROLLOUTS) is not None or process.poll() is not None, "the record")
        seconds = time.monotonic() - began
        assert process.wait(timeout=300.0) == 0, said(root)
    return seconds


def kill_in_attempt(bench: CrashBench, root: Path, after_s: float) -> bool:
    """Kill a process this long after its attempt at the rollouts began; False if it had ended by then."""
    number = num_attempts(root) + 1
    with bench.life(root, "stage", str(ROLLOUTS)) as process:
        wait_for_attempt(process, root, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=after_s)
        orphans = kill_alone(process)
        assert orphans is not None or process.returncode == 0, said(root)
    wait_until_orphans_end(orphans or [])
    return orphans is not None


def test_second_process_on_an_active_run_is_refused_in_one_line(
    bench: CrashBench, undisturbed: Outcome, tmp_path: Path
) -> None:
    begin = bench.log_end()
    with bench.life(tmp_path) as first:
        until(
            lambda: len(bench.arrivals(begin, bench.log_size())) > CONCURRENCY or first.poll() is not None, "requests"
        )
        assert freeze(first), said(tmp_path)
        earlier = said(tmp_path)
        with bench.life(tmp_path) as second:
            assert second.wait(timeout=300.0) not in (0, None)
        lines = said(tmp_path).splitlines()
        assert earlier == "" and len(lines) == 1
        assert str(ROLLOUTS) in lines[0] and f"process {first.pid}" in lines[0] and "wait until it ends" in lines[0]
        thaw(first)
        assert first.wait(timeout=300.0) == 0
    arrivals = bench.arrivals(begin, bench.log_end())
    assert sorted(arrival.seed for arrival in arrivals) == sorted(undisturbed.turns)
    check_end(tmp_path, undisturbed)
