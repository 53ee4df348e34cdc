"""Jobs run in passes; jobs that a pass could not finish are reported and retried."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from treadle.agent.jobs.runner import JobRunner
from treadle.core.errors import EndpointUnavailable


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
