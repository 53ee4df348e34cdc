"""Make rollouts: run each job of the stage `rollouts` in its task's environment, with a journal to resume it.

A fixed number of workers pull rollouts from a stream of questions, so RAM use does not grow with the work. The journal
caches each model answer, tool outcome and finished row. Rollouts that fail because of infrastructure are retried in
further passes, then left pending for a resumed run.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import orjson

from treadle.agent.call_cache import CallCache, JournalCache
from treadle.agent.contract import EpisodeOptions, Task
from treadle.agent.jobs.keys import unique_jobs
from treadle.agent.jobs.stage import JobStage
from treadle.agent.jobs.wall_limit import timed_rollout
from treadle.agent.model_sessions import ModelSessions
from treadle.agent.trajectory import Trajectory
from treadle.core.runs.stage import StageContext
from treadle.environments.rollouts.jobs import RolloutJob, rollout_jobs
from treadle.environments.rollouts.opened import OpenRollouts, check_policy, open_rollouts
from treadle.environments.rollouts.restarts import roll_out_again
from treadle.environments.rollouts.rows import group_seed, row_of, telemetry_of
from treadle.environments.rollouts.settings import RolloutsSettings, selected_environments
from treadle.environments.rollouts.usage import asked_tokens, charge_earlier
from treadle.environments.rollouts.writing import RowWriter, head_of


class RolloutsRun(JobStage[RolloutJob]):
    """One attempt of the stage."""

    NOUN = "rollouts"

    def __init__(self, context: StageContext) -> None:
        self._settings: RolloutsSettings = context.settings
        super().__init__(context, self._settings.options)
        self._environment_digests = self._settings.environment_digests()
        self._statuses: Counter[str] = Counter()
        self._open: OpenRollouts | None = None
        self._facts = {"environment": {}, "context": {}, "tokenizer_digest": ""}

    @contextlib.asynccontextmanager
    async def _opened(self, sessions: ModelSessions) -> AsyncIterator[None]:
        """Open the policy, the models that episodes ask, and the environments of the selected questions."""
        self._facts["tokenizer_digest"] = check_policy(self._settings)
        environments = selected_environments(self._settings, self._settings.options, self._context.inputs["questions"])
        async with open_rollouts(self._settings, environments, sessions, self._context.store) as self._open:
            self._facts |= {**self._open.facts, "tokenizer_digest": self._open.tokenizer_digest}
            yield

    def _count_earlier(self) -> None:
        keys = (job.key for job in self._own_jobs())
        charge_earlier(self._budget, self._journal, self._settings, keys)

    async def _run_job(self, job: RolloutJob) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        head = head_of(job, self._settings)
        cache: CallCache = JournalCache(self._journal, job.key)
        trajectory = await timed_rollout(
            lambda deadline: roll_out_again(
                lambda seed, cache: self._roll_out(job, seed, cache, deadline), head["seed"], cache
            ),
            rollout_time_s=self._settings.environment_of(job.question).rollout_time_s,
            wall_limit_s=self._settings.options.wall_limit_s,
        )
        row = row_of(head, trajectory, self._environment_digests.of(job.question), self._facts["tokenizer_digest"])
        self._finish(job, row, trajectory, loop.time() - started)

    async def _roll_out(self, job: RolloutJob, seed: int, cache: CallCache, deadline: float) -> Trajectory:
        assert self._open is not None
        task = Task.from_row(job.question)
        environment = self._open.environments[task.environment]
        return await environment.engine.roll_out(
            environment.runtime.episode(),
            task,
            seed=seed,
            deadline=deadline,
            cache=cache,
            options=EpisodeOptions(group_seed=group_seed(self._settings.seed, job.content_key)),
        )

    def _finish(self, job: RolloutJob, row: Mapping[str, Any], trajectory: Trajectory, seconds: float) -> None:
        telemetry = telemetry_of(row["rollout_key"], self._context.attempt, seconds, trajectory)
        self._journal.finish(job.key, orjson.dumps({"row": row, "telemetry": telemetry, **self._summary(job)}))
        self._statuses[trajectory.status] += 1
        self._context.progress.advance(1, **self._statuses)

    def _summary(self, job: RolloutJob) -> dict[str, Any]:
        """Return the tokens of the models that the episode asked, for the journal record of its rollout."""
        asked = asked_tokens(self._journal, self._settings, job.key)
        return {"asked": asked} if asked else {}

    def write(self) -> dict[str, Any]:
        """Check the result of the work, write all rows, and return the metrics."""
        self.check_pending()
        return RowWriter(self._context, self._settings).write(self._jobs_of_rows())

    def _jobs(self) -> Iterator[RolloutJob]:
        return unique_jobs(self._jobs_of_rows())

    def _jobs_of_rows(self) -> Iterator[RolloutJob]:
        """Yield the job of each row; rows of questions with the same content have the same job."""
        return rollout_jobs(self._settings, self._context.inputs)
