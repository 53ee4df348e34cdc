"""Several processes at one stage instance, over HTTP and on an object root: killed, interrupted, stopped, resumed."""

from __future__ import annotations

import fcntl
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.rollouts.pools_agent import WRONG, Agent, server
from support.rollouts.pools_bench import PoolsBench
from support.runs.counting_stage import numbers_of
from support.runs.crash_bench import ROLLOUTS, RUN, CrashBench, artifact_files, crash_bench, run_of, said
from support.runs.processes import freeze, kill_alone, thaw, until
from support.servers.object_machines import Machine
from support.servers.scripted_server import Fault, Item, RecordedRequest
from unit.core.runs import test_shards as local
from unit.core.runs.test_shards import ADDRESS, EVERY, Counting, cut_off, plan_of

from treadle.core.journal.segments import HEADER_BYTES, segments
from treadle.core.journal.upload import count_recorded
from treadle.core.runs.run import Run
from treadle.core.runs.shards import ShardPlan, Shards

CONCURRENCY = 3
NUM_SHARDS = 5
SMALL = ("environment.search.enabled=false", "environment.python.enabled=false", "rollouts.samples_per_question=2")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashBench]:
    folder = tmp_path_factory.mktemp("shards")
    with crash_bench(folder, documents=100, questions=40, latency_s=0.03) as started:
        yield started


def begin(bench: CrashBench, root: Path, num_shards: int) -> subprocess.Popen[bytes]:
    sets = (*SMALL, f"rollouts.max_concurrent={CONCURRENCY}", f"rollouts.shards={num_shards}")
    words = [word for value in sets for word in ("--set", value)]
    return bench.start(root, "run", str(root / "config.toml"), *words)


class ShardWorker:
    """A process of a divided stage, and the shard that it is at."""

    def __init__(self, root: Path, process: subprocess.Popen[bytes], log: str) -> None:
        self.root, self.process, self.log = root, process, log

    def shard(self) -> int | None:
        """Return the shard whose journal has records of it but no end."""
        logs = self.root.glob(f"runs/{RUN}/attempts/{ROLLOUTS}/1/{self.log}")
        lines = [
            line
            for log in logs
            for line in log.read_text().splitlines()
            if re.search("core.runs.shard_work: (working|finished)", line)
        ]
        if not lines or "working at shard" not in lines[-1]:
            return None
        index = int(lines[-1].partition("working at shard ")[2].split()[0]) - 1
        shards, plan = shards_of(self.root)
        found = segments(shards.storage.directory(shards.shard_key(plan, index)))
        return index if found and found[-1][1].stat().st_size > HEADER_BYTES else None

    def freeze_within_a_shard(self) -> int:
        """Stop it while a shard is started and not ended; return which."""
        while True:
            until(lambda: self.process.poll() is not None or self.shard() is not None, "a shard is begun")
            assert freeze(self.process), said(self.root)
            shards, plan = shards_of(self.root)
            index = self.shard()
            if index is not None and shards.result(plan, index) is None and no_write_in_progress(self.root):
                return index
            thaw(self.process)


def no_write_in_progress(root: Path) -> bool:
    """Return whether no process was stopped in a conditional put, which would block all others."""
    with (root / ".put_if.lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def helping(bench: CrashBench, root: Path, *options: str) -> ShardWorker:
    process = bench.start(root, "work", str(ROLLOUTS), *options)
    return ShardWorker(root, process, f"workers/*-{process.pid}.txt")


def shards_of(root: Path) -> tuple[Shards, ShardPlan]:
    run = run_of(root)
    assert run is not None
    shards = run.shards(ROLLOUTS, run.attempts(ROLLOUTS)[-1].journal_name)
    plan = shards.plan()
    assert plan is not None
    return shards, plan


def end(process: subprocess.Popen[bytes], root: Path, code: int = 0) -> None:
    assert process.wait(timeout=300.0) == code, said(root)


@dataclass(frozen=True)
class Alone:
    """The results of a single process."""

    files: dict[str, str]
    asked: set[int]
    """Seeds of its requests."""


@pytest.fixture(scope="module")
def alone(bench: CrashBench) -> Alone:
    root = bench.folder / "alone"
    first = bench.log_size()
    end(begin(bench, root, 1), root)
    asked = [arrival.seed for arrival in bench.arrivals(first, bench.log_end())]
    assert len(asked) == len(set(asked))
    return Alone(artifact_files(root), set(asked))


@pytest.mark.covers("flywheel-25")
@pytest.mark.sweep
def test_killed_processes_sharing_a_stage_produce_the_rows_of_one_process(
    bench: CrashBench, alone: Alone, tmp_path: Path
) -> None:
    root, began = tmp_path, bench.log_size()
    starter = ShardWorker(root, begin(bench, root, NUM_SHARDS), "log.txt")
    processes = [starter]
    try:
        own = starter.freeze_within_a_shard()
        for _ in range(2):
            processes.append(helping(bench, root))
            left = processes[-1].freeze_within_a_shard()
        _, killed, interrupted = processes
        kill_alone(killed.process)
        interrupted.process.send_signal(signal.SIGINT)
        thaw(interrupted.process)
        end(interrupted.process, root, 130)
        processes.append(helping(bench, root))
        end(processes[-1].process, root)
        shards, plan = shards_of(root)
        assert left != own
        assert [index for index in range(NUM_SHARDS) if shards.result(plan, index) is None] == [own]
        kill_alone(starter.process)
        run = run_of(root)
        assert run is not None and run.status(ROLLOUTS).state == "crashed"
        processes.append(helping(bench, root))
        end(processes[-1].process, root)
        assert run.status(ROLLOUTS).num_finished == 80
        before = bench.log_end()
        end(bench.start(root, "run"), root)
        assert bench.arrivals(before, bench.log_end()) == [], "asked again although all shards were finished"
    finally:
        for one in processes:
            kill_alone(one.process)
    assert artifact_files(root) == alone.files
    asked = Counter(arrival.seed for arrival in bench.arrivals(began, bench.log_end()))
    assert asked.keys() == alone.asked
    assert sum(count - 1 for count in asked.values()) <= 3 * CONCURRENCY, "only what was in flight is asked twice"
    assert not list((root / "runs" / RUN / "journal").rglob("*.journal"))


def test_four_concurrent_processes_match_one_and_send_each_request_once(
    bench: CrashBench, alone: Alone, tmp_path: Path
) -> None:
    began = bench.log_size()
    starter = ShardWorker(tmp_path, begin(bench, tmp_path, NUM_SHARDS), "log.txt")
    helpers = []
    try:
        starter.freeze_within_a_shard()
        helpers = [helping(bench, tmp_path) for _ in range(3)]
        until(lambda: len(list(tmp_path.glob(f"runs/{RUN}/attempts/{ROLLOUTS}/1/workers/*"))) == 3, "three help")
        thaw(starter.process)
        for one in (starter, *helpers):
            end(one.process, tmp_path)
    finally:
        for one in (starter, *helpers):
            kill_alone(one.process)
    assert artifact_files(tmp_path) == alone.files
    asked = [arrival.seed for arrival in bench.arrivals(began, bench.log_end())]
    assert len(asked) == len(alone.asked) and set(asked) == alone.asked
    end(helping(bench, tmp_path, "--set", "seed=8").process, tmp_path, 2)
    assert "run crash was made with another configuration (seed: 7 -> 8)" in said(tmp_path)
    assert len(said(tmp_path).splitlines()) == 1


PROGRAM = """
from types import SimpleNamespace
from treadle.core.journal import upload as journal_upload
from treadle.core.runs import shard_work, shards
from treadle.core.runs.run import Run
from treadle.core.runs.helping import help_instance
from unit.core.runs.test_shards import Counting
journal_upload.SEAL_INTERVAL_S = 0.05
shards.time = shard_work.time = SimpleNamespace(sleep=wait)
counting = Counting()

def before(owner):
    print(owner, flush=True)
    sys.stdin.readline()

counting.before = before
help_instance(counting.instance(shards=2), Run.open(sys.argv[1], "r1"))
"""


def test_frozen_worker_that_lost_its_shard_writes_nothing_more(object_root: str, tmp_path: Path) -> None:
    run, counting = Run.create(object_root, "r1", {}, {}), Counting()
    cut_off(run, counting, 0, shards=2)
    plan, shards = plan_of(run), run.shards(ADDRESS, run.attempts(ADDRESS)[-1].journal_name)
    assert plan is not None
    frozen = Machine(PROGRAM, object_root, tmp_path / "a")
    try:
        done = frozen.line()
        frozen.go_on()
        begun = frozen.line()
        index = local.shard_of(done, 2)
        until(lambda: count_recorded(run.storage, shards.shard_key(plan, index)) == 1, "one record was sent up")
        frozen.process.send_signal(signal.SIGSTOP)
        made, error = Machine(PROGRAM, object_root, tmp_path / "b", passes_time=True).end()
        assert sorted(made) == sorted(set(EVERY) - {done}), error
        frozen.process.send_signal(signal.SIGCONT)
        _, error = frozen.end()
    finally:
        frozen.process.kill()
    assert begun in made and frozen.process.returncode == 1
    last = error.splitlines()[-1]
    assert f"no longer holds shard {index + 1} of 2 of 1/count of run r1" in last, error
    local.execute(counting.instance(), run)
    assert counting.made == [] and numbers_of(run) == local.ALL
    assert not [key for key in run.storage.keys("runs/r1/journal") if "shard" in key]


@pytest.mark.parametrize("is_down", [False, True])
async def test_sharded_pools_equal_unsharded_ones(tmp_path: Path, is_down: bool) -> None:
    """Even if a helper model is lost and the partial work of each question is accepted."""
    made: list[Any] = []
    for num_shards in (1, 3):
        bench = PoolsBench(tmp_path / str(num_shards), [{"question": f"Which {number}?"} for number in range(4)])
        agent = Agent(lambda text, _: WRONG.replace("guess", f"guess {len(text)}"))

        def critic(request: RecordedRequest, agent: Agent = agent) -> Item:
            return Fault.status(500) if is_down and request.body.get("stop") else agent(request)

        async with server(agent) as policy, server(critic) as other:
            urls = {**dict.fromkeys(("policy", "refiner", "judge"), policy.url), "critic": other.url}
            options = {"rounds": 1, "operators": ["hint_step", "hint_tail"], "shards": num_shards}
            options["max_error_rate"] = 1.0
            record = await bench.make(urls, options=options, accept_failures=is_down)
        assert {row["status"] for row in bench.rows(record, "pool_questions")} == {"partial" if is_down else "ok"}
        # If a server is down, the causes name its port.
        made.append([row["text"] for row in bench.rows(record)] if is_down else record.outputs)
    assert made[0] == made[1] and made[0]
