"""Jobs run in passes; jobs that a pass could not finish are reported and retried."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from support.servers import own_clock

from treadle.agent.jobs.runner import JobRunner
from treadle.agent.jobs.status import Rate, reporting
from treadle.core.errors import BudgetExceeded, EndpointUnavailable


@dataclass(frozen=True, slots=True)
class Numbered:
    key: str


@dataclass(frozen=True, slots=True)
class Options:
    max_concurrent: int = 4
    pending_retries: int = 1
    pending_pause_s: float = 0.0
    max_error_rate: float = 0.1


async def test_jobs_never_tried_in_a_pass_stay_pending(caplog: pytest.LogCaptureFixture) -> None:
    jobs, finished, tried = [Numbered(str(number)) for number in range(40)], set[str](), list[str]()

    async def make(job: Numbered) -> None:
        tried.append(job.key)
        if len(tried) < 16 + 4:  # Each of four workers gives up at the sixteenth failure in a row or later.
            raise EndpointUnavailable("away")
        finished.add(job.key)

    job_runner = JobRunner(Options(), lambda: (job for job in jobs if job.key not in finished), make, noun="rollouts")
    await job_runner.work(len(jobs))
    assert "40 rollouts are pending, trying again in 0 s" in caplog.messages
    assert finished == {job.key for job in jobs} and not job_runner.last.errors


def test_status_is_reported_while_nothing_finishes() -> None:
    seen: list[tuple[float, dict[str, int]]] = []
    jobs, finished = [Numbered(str(number)) for number in range(6)], set[str]()

    async def make(job: Numbered) -> None:
        if job.key == "0":
            raise EndpointUnavailable("away")
        await asyncio.sleep(21.0)
        finished.add(job.key)

    async def work() -> None:
        options = Options(max_concurrent=2, pending_retries=0)
        runner = JobRunner(options, lambda: (job for job in jobs if job.key not in finished), make, noun="rollouts")
        async with reporting(lambda: seen.append((asyncio.get_running_loop().time(), runner.status()))):
            await runner.work(len(jobs))

    own_clock.run(work())
    assert seen[0][0] == 0.0 and seen[1] == (5.0, {"queued": 3, "running": 2, "failed": 1})
    times = [time for time, _ in seen]
    assert all(later - earlier <= 10 for earlier, later in zip(times, times[1:], strict=False))
    assert seen[5] == (25.0, {"queued": 1, "running": 2, "failed": 1})
    assert seen[-1] == (63.0, {"queued": 0, "running": 0, "failed": 1})


def test_failed_report_ends_neither_the_jobs_nor_later_reports(caplog: pytest.LogCaptureFixture) -> None:
    times: list[float] = []

    def report() -> None:
        times.append(asyncio.get_running_loop().time())
        if times[-1] in (5.0, 10.0, 21.0):
            raise BrokenPipeError("the terminal is gone")

    async def work() -> str:
        async with reporting(report):
            await asyncio.sleep(21.0)
        return "done"

    assert own_clock.run(work()) == "done"
    assert times == [0.0, 5.0, 10.0, 15.0, 20.0, 21.0]
    assert caplog.messages == ["the state of the jobs cannot be shown: BrokenPipeError: the terminal is gone"]


def test_rate_counts_each_token_once_over_the_last_minute() -> None:
    rate = Rate()
    # 10 tokens per second for two minutes, then a stall.
    found = [rate.per_s(5.0 * tick, 10 * min(5 * tick, 120)) for tick in range(40)]
    assert found[0] == 0.0 and found[1:25] == [10.0] * 24
    assert found[30] == 5.0 and found[36:] == [0.0] * 4


async def test_replies_in_flight_are_kept_when_the_budget_is_spent() -> None:
    jobs, finished, begun = [Numbered(str(number)) for number in range(6)], set[str](), list[str]()
    is_spent = asyncio.Event()

    async def make(job: Numbered) -> None:
        begun.append(job.key)
        if is_spent.is_set():
            raise BudgetExceeded("5 tokens are used")
        for _ in range(5 if job.key == "1" else 20):
            await asyncio.sleep(0)
        if job.key == "1":
            is_spent.set()
            raise BudgetExceeded("5 tokens are used")
        finished.add(job.key)

    job_runner = JobRunner(Options(), lambda: iter(jobs), make, noun="rollouts")
    with pytest.raises(BudgetExceeded):
        await job_runner.work(len(jobs))
    assert finished == {"0", "2", "3"} and begun == ["0", "1", "2", "3", "4", "5"]
