"""Explore the states of seed tasks and make tasks from the results; the journal lets stopped jobs resume.

Every reply of a model and every reaction of an environment is stored before it is used, so a resumed stage never
pays for one twice. Documented in docs/behaviour/exploration.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import orjson

from treadle.agent.call_cache import JournalCache
from treadle.agent.jobs.runner import PassResult
from treadle.agent.jobs.stage import JobStage
from treadle.agent.model_sessions import ModelSessions
from treadle.core.runs.stage import StageContext
from treadle.datagen.exploration.calibration import check_agreement
from treadle.datagen.exploration.jobs import EXPLORING, FILTERING, REPLAYING, ExplorationJobs, Job
from treadle.datagen.exploration.opened import open_exploration
from treadle.datagen.exploration.settings import ExplorationSettings
from treadle.datagen.exploration.summariser import Summariser
from treadle.datagen.exploration.usage import charge, role_models, used_tokens
from treadle.datagen.exploration.verdicts import open_verdicts
from treadle.datagen.exploration.work import JobWorker
from treadle.datagen.exploration.writing import TaskWriter
from treadle.datagen.prompts import SUMMARISE, PromptSet


class ExplorationRun(JobStage[Job]):
    """State of one attempt of the stage."""

    NOUN = "jobs"

    def __init__(self, context: StageContext) -> None:
        self._settings: ExplorationSettings = context.settings
        super().__init__(context, self._settings.options)
        self._prompts = PromptSet(self._settings.options.prompts, SUMMARISE, "exploration.prompts")
        self._prompts.check()
        self._known = ExplorationJobs(
            self._settings, context.inputs, context.journal, accepts_failures=context.accept_failures
        )
        self._writer = TaskWriter(context, self._known)
        self._models = role_models(self._settings)
        self._worker: JobWorker | None = None

    @contextlib.asynccontextmanager
    async def _opened(self, sessions: ModelSessions) -> AsyncIterator[None]:
        settings = self._settings
        async with open_exploration(settings, sessions, self._context.store) as opened:
            with open_verdicts(settings, opened.grader, self._context.store) as verdicts:
                summariser = Summariser(opened.summariser, settings.options, self._prompts, settings.seed)
                self._worker = JobWorker(settings, opened, summariser, verdicts)
                yield

    async def _run_jobs(self, num_open: int) -> None:
        """Run explorations and calibrations, then the filters, then the replays of the drafts that the filters kept."""
        failed = PassResult()
        for phase in (EXPLORING, FILTERING, REPLAYING):
            self._known.last_phase = phase
            if num_open := self._start_progress():
                await super()._run_jobs(num_open)
                failed.merge(self._job_runner.last)
            if failed.errors and not self._context.accept_failures:
                break
            if phase == EXPLORING:
                self._check_agreement()
        self._job_runner.last = failed

    def _check_agreement(self) -> None:
        """Raise StageFailed if grader and environment agree on too few rollouts; called before any replay."""
        options = self._settings.options
        if found := self._writer.agreement():
            check_agreement(self._context.address, options.grader, found, options.min_agreement)

    async def _run_job(self, job: Job) -> None:
        assert self._worker is not None
        record = await self._worker.run(job, JournalCache(self._journal, job.key))
        record["used"] = used_tokens(self._journal, job.key)
        self._journal.finish(job.key, orjson.dumps(record))
        self._context.progress.advance(1)

    def _count_earlier(self) -> None:
        """Charge the budget with what jobs used in earlier attempts."""
        for job in self._own_jobs():
            is_finished = self._journal.is_finished(job.key)
            used = self._stored(job.key)["used"] if is_finished else used_tokens(self._journal, job.key)
            charge(self._budget, self._models, used)

    def _jobs(self) -> Iterator[Job]:
        return iter(self._known)

    def write(self) -> Mapping[str, Any]:
        """Write the tasks and all drafts, and return the metrics; raise StageFailed if there is no task."""
        self.check_pending()
        self._check_agreement()
        return self._writer.write()
