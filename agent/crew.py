"""A crew of workers over a stream of jobs: what infrastructure kept from finishing is tried again, then owed.

Stages of many independent jobs (rollouts, the pools of questions) share it. Memory does not grow with the number of
jobs: they come from a stream that is read anew in each pass, and only the causes of owed ones are kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from treadle.core.errors import ModelError, RolloutsOwed, StageFailed, ToolError, TreadleError
from treadle.core.stage import Address, StageContext, Worked

_log = logging.getLogger(__name__)


class Job(Protocol):
    """One unit of work; `key` is its owner in the journal."""

    @property
    def key(self) -> str:
        """Unique within the stage."""
        ...


T_Job = TypeVar("T_Job", bound=Job)


class CrewOptions(Protocol):
    """The keys of a stage's section that a crew reads."""

    @property
    def max_concurrent(self) -> int:
        """Jobs in progress at once."""
        ...

    @property
    def owed_retries(self) -> int:
        """Further passes over owed jobs."""
        ...

    @property
    def owed_pause_s(self) -> float:
        """Pause before the first such pass; doubled for each further one."""
        ...

    @property
    def max_error_rate(self) -> float:
        """Largest share of failed jobs with which the stage may end, where failures are accepted."""
        ...


@dataclass(slots=True)
class Pass:
    """What one pass over the open jobs came to."""

    errors: dict[str, str] = field(default_factory=dict)
    retryable: bool = False
    in_a_row: int = 0
    first: str = ""

    def owe(self, key: str, error: Exception) -> None:
        """Note a job that could not be finished."""
        cause = cause_of(error)
        self.errors[key] = cause
        self.first = self.first or cause
        self.retryable |= isinstance(error, TreadleError) and error.retryable
        self.in_a_row += 1


def cause_of(error: Exception) -> str:
    """An error in words, with its type where it is nobody's message to a user."""
    return str(error) if isinstance(error, TreadleError) else f"{type(error).__name__}: {error}"


def is_owed(error: Exception) -> bool:
    """Whether a job is owed for this error; others (a budget, a full disk, a broken tool) stop the stage."""
    if isinstance(error, TreadleError):
        return isinstance(error, ModelError) or (isinstance(error, ToolError) and error.retryable)
    return True


class Crew(Generic[T_Job]):
    """Works through jobs in passes.

    Attributes:
        last: The last pass; its errors are the jobs still owed.
    """

    def __init__(
        self,
        options: CrewOptions,
        open_jobs: Callable[[], Iterator[T_Job]],
        make: Callable[[T_Job], Awaitable[None]],
        *,
        noun: str,
    ) -> None:
        """`open_jobs` reads the jobs that are not finished, anew for each pass; `make` finishes one, or raises."""
        self._options = options
        self._open_jobs = open_jobs
        self._make = make
        self._noun = noun
        self.last = Pass()

    async def work(self, num_open: int) -> None:
        """Pass over the open jobs until none is left, or none of the causes may pass by itself."""
        for number in range(self._options.owed_retries + 1):
            if number:
                pause_s = self._options.owed_pause_s * 2 ** (number - 1)
                num_open = len(self.last.errors)
                _log.warning("%d %s are owed, trying again in %g s", num_open, self._noun, pause_s)
                await asyncio.sleep(pause_s)
            self.last = Pass()
            await self._one_pass(num_open)
            if not self.last.retryable:
                break

    async def _one_pass(self, num_open: int) -> None:
        jobs = self._open_jobs()
        number = min(self._options.max_concurrent, num_open)
        workers = [asyncio.create_task(self._take(jobs, 2 * number + 8)) for _ in range(number)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _take(self, jobs: Iterator[T_Job], give_up_after: int) -> None:
        """Take jobs from the stream until it ends, or until nothing but failures came for a while."""
        for job in jobs:
            try:
                await self._make(job)
            except Exception as error:
                if not is_owed(error):
                    raise
                unforeseen = not isinstance(error, TreadleError)
                _log.warning("%s %s is owed: %s", self._noun[:-1], job.key, error, exc_info=unforeseen)
                self.last.owe(job.key, error)
                if self.last.in_a_row >= give_up_after:
                    return
            else:
                self.last.in_a_row = 0

    def worked(self, facts: Mapping[str, Any]) -> Worked:
        """What the last pass left, for `Stage.run`."""
        return Worked(self.last.errors, self.last.first, self.last.retryable, facts)


def begin(context: StageContext, jobs: Iterable[Job], noun: str) -> int:
    """Number of jobs that are not finished; the progress is told of all."""
    num_jobs = num_finished = 0
    for job in jobs:
        num_jobs += 1
        num_finished += context.journal.is_finished(job.key)
    if num_jobs:
        context.progress.start(num_jobs, num_finished, noun)
    return num_jobs - num_finished


def settle(context: StageContext, options: CrewOptions, jobs: Iterable[Job], noun: str) -> tuple[int, int]:
    """Number of all jobs and of those that are owed, where the user accepts that; to be asked when the work is over.

    Raises StageFailed where there are no jobs, or more failed than `max_error_rate` allows, and RolloutsOwed.
    """
    num_jobs = num_owed = 0
    for job in jobs:
        num_jobs += 1
        num_owed += not context.journal.is_finished(job.key)
    if not num_jobs:
        raise StageFailed(
            f"{context.address}: none of the questions is selected; check datasets, split and max_questions"
        )
    if not num_owed:
        return num_jobs, 0
    said = f"{context.address}: {num_owed} of {num_jobs} {noun} could not be finished"
    cause = f"first cause: {context.worked.first}"
    if not context.accept_failures:
        remedy = "run again to retry them, or accept them as failed rows with --accept-failures"
        raise RolloutsOwed(f"{said}; {cause}; {remedy}", retryable=context.worked.retryable)
    if num_owed > options.max_error_rate * num_jobs:
        raise StageFailed(
            f"{said}, more than max_error_rate = {options.max_error_rate:g} allows; {cause}; run again to retry them"
        )
    return num_jobs, num_owed


def refuse_silence(address: Address, statuses: Mapping[str, int], noun: str) -> NoReturn:
    """Raise StageFailed: the policy said nothing in all that was asked of it; `statuses` tells how that ended."""
    told = ", ".join(f"{name} {count:,}" for name, count in sorted(statuses.items()))
    raise StageFailed(
        f"{address}: the model said nothing in any of {sum(statuses.values()):,} {noun} ({told}); look at its server "
        f"and at environment.rollout_time_s, then: treadle stage {address} --force"
    )
