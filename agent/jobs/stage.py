"""Run one attempt at a stage whose work is a stream of independent jobs, each with its own record in the journal.

A stage defines its jobs, the resources that they use, how one job is run and what earlier attempts spent. The order,
the budget, resuming, pending jobs and unreachable endpoints are handled here.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, Generic, Protocol

import orjson

from treadle.agent.jobs.runner import JobRunner, JobRunnerOptions, T_Job
from treadle.agent.jobs.status import Rate, ServerRates, reporting
from treadle.agent.metering import TokenBudget
from treadle.agent.model_sessions import ModelSessions
from treadle.core.errors import EndpointUnavailable, JobsPending, StageFailed
from treadle.core.runs.live_status import write_live_status
from treadle.core.runs.records import LiveStatus
from treadle.core.runs.stage import StageContext, WorkResult


class JobStageOptions(JobRunnerOptions, Protocol):
    """Keys of a stage's section that `JobStage` reads."""

    @property
    def max_total_tokens(self) -> int | None:
        """Most tokens that the stage may use; None for no limit."""
        ...

    @property
    def max_cost(self) -> float | None:
        """Most that the stage may cost; None for no limit."""
        ...


class JobStage(ABC, Generic[T_Job]):
    """One attempt at the jobs of a stage instance. `work` runs the jobs; subclasses then write their rows."""

    NOUN: ClassVar[str]
    """What the jobs are called in messages and in the progress display, in the plural."""

    def __init__(self, context: StageContext, options: JobStageOptions) -> None:
        self._context = context
        self._journal = context.journal
        self._budget = TokenBudget(options.max_total_tokens, options.max_cost, num_shards=context.num_shards)
        self._max_error_rate = options.max_error_rate
        self._job_runner = JobRunner(options, self._open_jobs, self._run_job, noun=self.NOUN)
        self._rate = Rate()
        self._servers = ServerRates()
        self._facts: dict[str, Any] = {}
        """Facts about the work that the rows need in addition to the journal; see `WorkResult`."""

    @abstractmethod
    def _jobs(self) -> Iterator[Any]:
        """Yield the jobs of the instance, each once, in the order of their rows."""

    @abstractmethod
    def _opened(self, sessions: ModelSessions) -> AbstractAsyncContextManager[None]:
        """Return a context in which jobs can be run, with models from `sessions`."""

    @abstractmethod
    async def _run_job(self, job: T_Job) -> None:
        """Run one job and write its final record; raise if infrastructure keeps it from finishing."""

    @abstractmethod
    def _count_earlier(self) -> None:
        """Charge the budget with what earlier attempts spent; called only if the budget has a limit."""

    async def work(self) -> WorkResult:
        """Run the unfinished jobs of this process."""
        num_open = self._start_progress()
        if not num_open:
            return WorkResult()
        try:
            async with ModelSessions(self._budget) as sessions, self._opened(sessions):
                if self._budget.is_limited:
                    self._count_earlier()
                async with reporting(lambda: self._report_status(sessions)):
                    await self._run_jobs(num_open)
        except EndpointUnavailable as error:
            if not self._context.accept_failures:
                raise
            # The jobs stay pending; `check_pending` compares their share with `max_error_rate`.
            self._job_runner.last.first = self._job_runner.last.first or str(error)
        return self._job_runner.work_result(self._facts)

    async def _run_jobs(self, num_open: int) -> None:
        """Run the unfinished jobs. A stage overrides it if further jobs follow from the results of these."""
        await self._job_runner.work(num_open)

    def _report_status(self, sessions: ModelSessions) -> None:
        now_s = asyncio.get_running_loop().time()
        rate, jobs = self._rate.per_s(now_s, self._budget.sampled_tokens), self._job_runner.status()
        self._context.progress.advance(0, **jobs, tokens_per_s=round(rate))
        doing = ", ".join(f"{number:,} {self.NOUN} {name}" for name, number in jobs.items() if number)
        servers = self._servers.statuses(sessions.endpoint_states(), now_s)
        write_live_status(self._context.scratch, LiveStatus(doing=doing, model_servers=tuple(servers)))

    def check_pending(self) -> int:
        """Return the number of pending jobs after the work, if it is 0 or the user accepts failures.

        Raises StageFailed if there are no jobs, or if more failed than `max_error_rate` allows. Raises JobsPending if
        jobs are pending and failures are not accepted.
        """
        num_jobs, num_finished = self._count_jobs(self._jobs())
        if not num_jobs:
            raise StageFailed(
                f"{self._context.address}: no question is selected; check datasets, split and max_questions"
            )
        num_pending = num_jobs - num_finished
        if not num_pending:
            return 0
        summary = f"{self._context.address}: {num_pending} of {num_jobs} {self.NOUN} could not be finished"
        cause = f"first cause: {self._context.work_result.first}"
        if not self._context.accept_failures:
            remedy = "run again to retry them, or accept them as failed rows with --accept-failures"
            raise JobsPending(f"{summary}; {cause}; {remedy}", retryable=self._context.work_result.retryable)
        if num_pending > self._max_error_rate * num_jobs:
            raise StageFailed(
                f"{summary}, more than max_error_rate = {self._max_error_rate:g} allows; {cause}; "
                "run again to retry them"
            )
        return num_pending

    def _own_jobs(self) -> Iterator[T_Job]:
        return (job for job in self._jobs() if self._context.owns(job.key))

    def _open_jobs(self) -> Iterator[T_Job]:
        return (job for job in self._own_jobs() if not self._journal.is_finished(job.key))

    def _stored(self, key: str) -> dict[str, Any]:
        """Return the final record of a finished job."""
        stored: dict[str, Any] = orjson.loads(self._journal.finished(key))
        return stored

    def _start_progress(self) -> int:
        """Start the progress display over the jobs of this process; return the number of unfinished ones."""
        num_jobs, num_finished = self._count_jobs(self._own_jobs())
        if num_jobs:
            self._context.progress.start(num_jobs, num_finished, self.NOUN)
        return num_jobs - num_finished

    def _count_jobs(self, jobs: Iterator[T_Job]) -> tuple[int, int]:
        """Return the numbers of all jobs and of the finished ones."""
        num_jobs = num_finished = 0
        for job in jobs:
            num_jobs += 1
            num_finished += self._journal.is_finished(job.key)
        return num_jobs, num_finished
