"""Run a stream of jobs with bounded concurrency; retry infrastructure failures, then leave them pending.

Stages with many independent jobs (rollouts, question pools) use it. Memory does not grow with the number of jobs: each
pass reads the stream of jobs again, and only the errors of pending jobs are kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from treadle.core.errors import BudgetExceeded, ModelError, StageFailed, ToolError, TreadleError
from treadle.core.runs.address import Address
from treadle.core.runs.stage import WorkResult

_log = logging.getLogger(__name__)


class KeyedJob(Protocol):
    """Unit of work of a stage. Its journal records are stored under `key`."""

    @property
    def key(self) -> str:
        """Key that is unique within the stage."""
        ...


T_Job = TypeVar("T_Job", bound=KeyedJob)


class JobRunnerOptions(Protocol):
    """Keys of a stage's section that the job runner reads."""

    @property
    def max_concurrent(self) -> int:
        """Number of jobs in progress at once."""
        ...

    @property
    def pending_retries(self) -> int:
        """Number of further passes over pending jobs."""
        ...

    @property
    def pending_pause_s(self) -> float:
        """Seconds before the first of these passes; doubled for each further one."""
        ...

    @property
    def max_error_rate(self) -> float:
        """Largest share of failed jobs with which the stage may end, if failures are accepted."""
        ...


@dataclass(slots=True)
class PassResult:
    """Result of one pass over the unfinished jobs.

    Attributes:
        errors: Cause of failure by job key.
        retryable: Whether any of the errors is retryable.
        num_consecutive_failures: Number of jobs that failed since the last one that finished.
        first: Cause of the first failure.
    """

    errors: dict[str, str] = field(default_factory=dict)
    retryable: bool = False
    num_consecutive_failures: int = 0
    first: str = ""

    def add_failure(self, key: str, error: Exception) -> None:
        """Record a job that could not be finished."""
        cause = cause_of(error)
        self.errors[key] = cause
        self.first = self.first or cause
        self.retryable |= isinstance(error, TreadleError) and error.retryable
        self.num_consecutive_failures += 1

    def merge(self, other: PassResult) -> None:
        """Add the errors of another pass, over other jobs."""
        self.errors |= other.errors
        self.retryable |= other.retryable
        self.first = self.first or other.first


def cause_of(error: Exception) -> str:
    """Return the message of an error; with its type and its notes unless it is a TreadleError."""
    if isinstance(error, TreadleError):
        return str(error)
    return "; ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])


def leaves_job_pending(error: Exception) -> bool:
    """Return whether a job stays pending after this error; others (budget, full disk, broken tool) stop the stage."""
    if isinstance(error, TreadleError):
        return isinstance(error, ModelError) or (isinstance(error, ToolError) and error.retryable)
    return True


class JobRunner(Generic[T_Job]):
    """Job runner: works through the unfinished jobs in passes, with `max_concurrent` jobs at once.

    Attributes:
        last: Result of the last pass; its errors are those of the jobs still pending.
        num_running: Number of jobs in progress.
    """

    def __init__(
        self,
        options: JobRunnerOptions,
        open_jobs: Callable[[], Iterator[T_Job]],
        run_job: Callable[[T_Job], Awaitable[None]],
        *,
        noun: str,
    ) -> None:
        """Set up a run; `open_jobs` returns the unfinished jobs once per pass, `run_job` finishes one job or raises."""
        self._options = options
        self._open_jobs = open_jobs
        self._run_job = run_job
        self._noun = noun
        self.last = PassResult()
        self.num_running = 0
        self._num_open = 0

    def status(self) -> dict[str, int]:
        """Return the numbers of jobs that wait for their turn, are in progress, and failed in this pass."""
        failed = len(self.last.errors)
        return {
            "queued": max(0, self._num_open - self.num_running - failed),
            "running": self.num_running,
            "failed": failed,
        }

    async def work(self, num_open: int) -> None:
        """Run passes over the unfinished jobs until no retryable error is left, or `pending_retries` is exhausted."""
        for number in range(self._options.pending_retries + 1):
            if number:
                pause_s = self._options.pending_pause_s * 2 ** (number - 1)
                # A pass that gave up early left jobs untried, so the number of its errors would be too small.
                num_open = sum(1 for _ in self._open_jobs())
                _log.warning("%d %s are pending, trying again in %g s", num_open, self._noun, pause_s)
                await asyncio.sleep(pause_s)
            self.last = PassResult()
            await self._one_pass(num_open)
            if not self.last.retryable:
                break

    async def _one_pass(self, num_open: int) -> None:
        self._num_open = num_open
        jobs = self._open_jobs()
        number = min(self._options.max_concurrent, num_open)
        workers = [asyncio.create_task(self._run_worker(jobs, 2 * number + 8)) for _ in range(number)]
        try:
            await asyncio.gather(*workers)
        except BudgetExceeded:
            # Workers send no further request, but the replies to those in flight are paid for, and kept.
            await asyncio.gather(*workers, return_exceptions=True)
            raise
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _run_worker(self, jobs: Iterator[T_Job], give_up_after: int) -> None:
        """Run jobs from the stream until it ends, or until `give_up_after` jobs of this pass failed in a row."""
        for job in jobs:
            self.num_running += 1
            try:
                await self._run_job(job)
            except Exception as error:
                if not leaves_job_pending(error):
                    raise
                unexpected = not isinstance(error, TreadleError)
                _log.warning("%s %s is pending: %s", self._noun[:-1], job.key, error, exc_info=unexpected)
                self.last.add_failure(job.key, error)
                # So many failures in a row suggest a common cause: leave the other jobs to the next pass.
                if self.last.num_consecutive_failures >= give_up_after:
                    return
            else:
                self.last.num_consecutive_failures = 0
                self._num_open -= 1
            finally:
                self.num_running -= 1

    def work_result(self, facts: Mapping[str, Any]) -> WorkResult:
        """Return the result of the last pass, for `Stage.run`."""
        return WorkResult(self.last.errors, self.last.first, self.last.retryable, facts)


def raise_no_output(address: Address, statuses: Mapping[str, int], noun: str) -> NoReturn:
    """Raise StageFailed because the model generated no text in any job; `statuses` counts how the jobs ended."""
    counts = ", ".join(f"{name} {count:,}" for name, count in sorted(statuses.items()))
    raise StageFailed(
        f"{address}: the model generated no text in any of {sum(statuses.values()):,} {noun} ({counts}); check "
        f"its server and environment.rollout_time_s, then: treadle stage {address} --force"
    )
