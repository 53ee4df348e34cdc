"""The jobs of a stage instance divided into shards: by one process, by several, and over several attempts."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.runs.counting_stage import NUMBERS, numbers_of
from support.runs.counting_stage import counting as whole_stage

from treadle.agent.metering import TokenBudget
from treadle.core.config import Operational, Section
from treadle.core.errors import ArtifactError, BudgetExceeded, JobsPending, RunError
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.helping import help_instance
from treadle.core.runs.run import Run
from treadle.core.runs.shards import ShardPlan, shard_of
from treadle.core.runs.stage import Instance, Stage, StageContext, WorkResult
from treadle.core.store.locks import hold

ADDRESS = Address(1, "count")


class Settings(Section):
    count: int = 40
    shards: Operational[int] = 4


class Counting:
    """A stage that counts its work; `refuse` leaves numbers pending, `before` is called before each."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.refuse: set[str] = set()
        self.before: Callable[[str], None] = lambda owner: None

    def work(self, context: StageContext) -> WorkResult:
        causes = {}
        for owner in owners(context):
            if context.owns(owner) and not context.journal.is_finished(owner):
                self.before(owner)
                if owner in self.refuse:
                    causes[owner] = "no answer"
                    continue
                self.made.append(owner)
                context.journal.finish(owner, owner.removeprefix("n").encode())
        return WorkResult(causes, "no answer" if causes else "", bool(causes), {"shards": context.num_shards})

    def run(self, context: StageContext) -> dict[str, Any]:
        worked, missing = context.work_result, [key for key in owners(context) if not context.journal.is_finished(key)]
        assert sorted(worked.causes) == sorted(missing)
        if missing and not context.accept_failures:
            raise JobsPending(f"{len(missing)} are owed: {worked.first}", retryable=worked.retryable)
        for owner in owners(context):
            assert context.owns(owner)
            value = context.journal.finished(owner) if owner not in missing else b"-1"
            context.write("numbers", [{"number": int(value)}])
        return {"shards": worked.facts["shards"]}

    def instance(self, **settings: Any) -> Instance:
        stage = Stage(
            name="count",
            version=1,
            settings=Settings,
            produces=(NUMBERS,),
            run=self.run,
            work=self.work,
            num_shards=lambda settings: settings.shards,
        )
        return Instance(address=ADDRESS, stage=stage, settings=Settings(**settings))


def owners(context: StageContext) -> list[str]:
    return [f"n{number}" for number in range(context.settings.count)]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path, "r1", {}, {})


@pytest.fixture
def counting() -> Counting:
    return Counting()


ALL = list(range(40))
EVERY = sorted(f"n{number}" for number in ALL)


def plan_of(run: Run) -> ShardPlan | None:
    return run.shards(ADDRESS, run.attempts(ADDRESS)[-1].fingerprint).plan()


def cut_off(run: Run, counting: Counting, after: int, **settings: Any) -> None:
    """Run an attempt that is interrupted after this number of units."""

    def before(owner: str) -> None:
        if len(counting.made) >= after:
            raise KeyboardInterrupt

    counting.before = before
    with pytest.raises(KeyboardInterrupt):
        execute(counting.instance(**settings), run)
    counting.before = lambda owner: None


def test_job_always_belongs_to_the_same_shard() -> None:
    assert [shard_of(key, 8) for key in ("a", "b", "0123456789abcdef", "ü")] == [0, 4, 2, 5]
    parts = [shard_of(f"n{number}", 7) for number in range(7000)]
    assert all(850 < parts.count(part) < 1150 for part in range(7))


def test_one_process_works_on_all_shards_and_matches_a_single_journal(run: Run, tmp_path: Path) -> None:
    divided, whole = Counting(), Counting()
    record = execute(divided.instance(shards=4), run)
    other = execute(whole.instance(shards=1), Run.create(tmp_path / "other", "r1", {}, {}))
    assert record.outputs == other.outputs and numbers_of(run) == ALL
    assert (record.metrics, other.metrics) == ({"shards": 4}, {"shards": 1})
    assert sorted(divided.made) == EVERY and whole.made == [f"n{number}" for number in ALL]
    assert record.fingerprint == other.fingerprint
    assert not list(run.storage.keys("runs/r1/journal"))
    assert help_instance(divided.instance(), run) == 0


def test_interrupted_attempt_keeps_its_shards_regardless_of_the_config(run: Run, counting: Counting) -> None:
    cut_off(run, counting, 25)
    assert run.status(ADDRESS).num_finished == 25
    record = execute(counting.instance(shards=9), run)
    assert record.metrics == {"shards": 4}
    assert sorted(counting.made) == EVERY and numbers_of(run) == ALL


def test_work_started_in_one_journal_stays_in_it(run: Run, counting: Counting) -> None:
    cut_off(run, counting, 5, shards=1)
    with pytest.raises(RunError, match="1/count of run r1 is not divided into shards;"):
        help_instance(counting.instance(), run)
    assert execute(counting.instance(shards=4), run).metrics == {"shards": 1}
    assert sorted(counting.made) == EVERY


@pytest.mark.parametrize("then", [1, 3])
def test_force_reshards_and_reuses_nothing(run: Run, counting: Counting, then: int) -> None:
    cut_off(run, counting, 25)
    counting.made.clear()
    assert execute(counting.instance(shards=then), run, force=True).metrics == {"shards": then}
    assert sorted(counting.made) == EVERY and numbers_of(run) == ALL
    assert not list(run.storage.keys("runs/r1/journal"))


def test_workers_take_free_shards_and_the_first_process_waits_for_them(run: Run, counting: Counting) -> None:
    """It is held up in its first number until three others have worked at everything else."""
    begun, helped = threading.Event(), threading.Event()
    main = threading.get_ident()

    def before(owner: str) -> None:
        if threading.get_ident() == main:
            begun.set()
            assert helped.wait(60)

    counting.before = before
    done: list[int] = []

    def help_out() -> None:
        assert begun.wait(60)
        done.append(help_instance(counting.instance(), run))
        if len(done) == 3:
            helped.set()

    threads = [threading.Thread(target=help_out) for _ in range(3)]
    for thread in threads:
        thread.start()
    execute(counting.instance(), run)
    for thread in threads:
        thread.join()
    assert sum(done) == 3
    assert sorted(counting.made) == EVERY and numbers_of(run) == ALL
    logs = [key for key in run.storage.keys("runs/r1/attempts") if "/workers/" in key]
    assert logs and b"finished shard" in (run.storage.get(logs[0]) or b"")


def test_worker_finishes_work_of_a_dead_first_process(run: Run, counting: Counting) -> None:
    cut_off(run, counting, 25)
    assert help_instance(counting.instance(), run) > 0
    assert sorted(counting.made) == EVERY
    assert run.status(ADDRESS).num_finished == 40 and run.record(ADDRESS) is None
    assert help_instance(counting.instance(), run) == 0
    execute(counting.instance(), run)
    assert sorted(counting.made) == EVERY and numbers_of(run) == ALL


def test_worker_skips_shards_held_by_a_live_process(run: Run, counting: Counting, tmp_path: Path) -> None:
    cut_off(run, counting, 0)
    with hold(tmp_path / "runs/r1/locks/1/count/2.lock", "it"):
        assert help_instance(counting.instance(), run) == 3
    assert all(shard_of(owner, 4) != 2 for owner in counting.made)
    assert help_instance(counting.instance(), run) == 1


def test_pending_jobs_of_all_shards_are_reported_together_and_retried(run: Run, counting: Counting) -> None:
    counting.refuse = {"n1", "n2", "n3", "n4"}
    assert len({shard_of(owner, 4) for owner in counting.refuse}) > 1
    with pytest.raises(JobsPending, match="4 are owed: no answer") as error:
        execute(counting.instance(), run)
    assert error.value.retryable
    assert help_instance(counting.instance(), run) == 0, "nothing more is tried in this attempt"
    counting.refuse = {"n3"}
    with pytest.raises(JobsPending, match="1 are owed"):
        execute(counting.instance(), run)
    record = execute(counting.instance(), run, accept_failures=True)
    assert sorted(counting.made) == sorted(set(EVERY) - {"n3"})
    assert record.metrics == {"shards": 4} and numbers_of(run) == [-1 if number == 3 else number for number in ALL]


def test_findings_of_one_shard_are_merged_with_empty_ones(run: Run, counting: Counting) -> None:
    said: list[dict[str, Any]] = [
        {"servers": {"policy": {"ids": True}, "judge": {"ids": False}}, "digest": "d1"},
        {},
        {"servers": {"policy": {"ids": False}}, "digest": "", "count": 3},
        {"servers": {}, "digest": None, "count": 0},
    ]
    work, seen = counting.work, []

    def telling(context: StageContext) -> WorkResult:
        shard = next(shard_of(owner, 4) for owner in owners(context) if context.owns(owner))
        return replace(work(context), facts=said[shard])

    def told(context: StageContext) -> dict[str, Any]:
        seen.append(context.work_result.facts)
        context.write("numbers", [{"number": 1}])
        return {}

    counting.work, counting.run = telling, told  # type: ignore[method-assign]
    execute(counting.instance(), run)
    servers = {"policy": {"ids": False}, "judge": {"ids": False}}
    assert seen == [{"servers": servers, "digest": "d1", "count": 0}]


def test_failing_worker_leaves_its_shard_open(run: Run, counting: Counting) -> None:
    cut_off(run, counting, 0)

    def fail(owner: str) -> None:
        if owner == "n7":
            raise ValueError("a bug")

    counting.before = fail
    with pytest.raises(ValueError, match="a bug"):
        while True:
            help_instance(counting.instance(), run)
    counting.before = lambda owner: None
    execute(counting.instance(), run)
    assert sorted(counting.made) == EVERY and numbers_of(run) == ALL


def test_jobs_cannot_write_rows_and_finished_work_accepts_no_records(run: Run) -> None:
    counting = Counting()

    def write(context: StageContext) -> WorkResult:
        context.write("numbers", [{"number": 1}])
        return WorkResult()

    def record(context: StageContext) -> dict[str, Any]:
        context.journal.finish("x", b"")
        return {}

    counting.work = write  # type: ignore[method-assign]
    with pytest.raises(ArtifactError, match="1/count: rows can be written only after all jobs have been processed"):
        execute(counting.instance(), run)
    counting = Counting()
    counting.run = record  # type: ignore[method-assign]
    with pytest.raises(Exception, match="their journals are read-only"):
        execute(counting.instance(), run)


def test_late_worker_finds_the_instance_finished(run: Run, counting: Counting) -> None:
    with pytest.raises(RunError, match="is not divided into shards;"):
        help_instance(counting.instance(), run)
    execute(counting.instance(), run)
    assert help_instance(counting.instance(), run) == 0
    assert plan_of(run) is None


def test_unsharded_stage_cannot_be_helped(run: Run) -> None:
    with pytest.raises(RunError, match="1/count: a stage count is not sharded"):
        help_instance(whole_stage(), run)


def test_each_shard_gets_an_equal_part_of_the_budget() -> None:
    budget = TokenBudget(100, 2.0, num_shards=4)
    budget.used_tokens = 24
    budget.check()
    budget.used_tokens = 25
    with pytest.raises(
        BudgetExceeded, match="25 tokens are used of 25 for each of 4 shards, by max_total_tokens = 100"
    ):
        budget.check()
    budget.used_tokens, budget.used_cost = 0, 0.5
    with pytest.raises(BudgetExceeded, match="0.5 are spent of 0.5 for each of 4 shards, by max_cost = 2"):
        budget.check()


def test_exit_in_code_of_a_user_is_an_error_of_the_worker(run: Run, counting: Counting) -> None:
    cut_off(run, counting, 25)

    def leave(owner: str) -> None:
        sys.exit(0)

    counting.before = leave
    with pytest.raises(RuntimeError, match="tried to end the process"):
        help_instance(counting.instance(), run)
    logs = [run.storage.get(key) for key in run.storage.keys("runs/r1/attempts") if "/workers/" in key]
    assert any(b"worker stopped" in (log or b"") for log in logs)
