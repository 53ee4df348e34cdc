"""Make the pool of each question of the stage `pools` in its environment; the journal lets stopped work resume.

The journal stores the answers of models and tools under the key of the question's job, and a finished pool as the job's
final record.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import orjson

from treadle.agent.call_cache import CallCache, CountingCache, JournalCache
from treadle.agent.jobs.keys import QuestionJob
from treadle.agent.jobs.stage import JobStage
from treadle.agent.model_sessions import ModelSessions
from treadle.core.runs.stage import StageContext
from treadle.datagen.pools.context import PoolContext
from treadle.datagen.pools.evolution import Evolution
from treadle.datagen.pools.jobs import pool_jobs
from treadle.datagen.pools.opened import OpenPools, open_models, open_pools, replay_pools
from treadle.datagen.pools.rows import failed_question_row, rows_of
from treadle.datagen.pools.settings import PoolsSettings
from treadle.datagen.pools.writing import PoolsWriter
from treadle.datagen.prompts import PromptSet
from treadle.environments.rollouts.settings import selected_environments
from treadle.environments.settings import EnvironmentSettings


class PoolsRun(JobStage[QuestionJob]):
    """State of one attempt of the stage."""

    NOUN = "questions"

    def __init__(self, context: StageContext) -> None:
        self._settings: PoolsSettings = context.settings
        super().__init__(context, self._settings.options)
        self._environment_digests = self._settings.environment_digests()
        PromptSet(self._settings.options.prompts).check()
        self._open: OpenPools | None = None
        self._counted: dict[str, set[str]] = {}
        self._counts: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def _opened(self, sessions: ModelSessions) -> AsyncIterator[None]:
        # Unfinished questions are replayed with the facts about the policy's server, even if others are unreachable.
        servers = self._facts["servers"] = dict[str, Any]()
        models = await open_models(self._settings, sessions, servers)
        async with open_pools(self._settings, self._environments(), models, self._context.store) as self._open:
            self._facts["sandbox"] = self._open.sandbox
            yield

    def _environments(self) -> dict[str, EnvironmentSettings]:
        """Return the environments of the selected questions, by name."""
        return selected_environments(self._settings, self._settings.options, self._context.inputs["questions"])

    async def _run_job(self, job: QuestionJob) -> None:
        assert self._open is not None
        stored = await self._evolve(job, self._open.contexts[job.question["environment"]])
        self._journal.finish(job.key, orjson.dumps(stored))
        self._counted.pop(job.key, None)
        self._counts["trajectories"] += stored["question"]["num_trajectories"]
        self._counts["right"] += stored["question"]["num_correct"]
        if (status := stored["question"]["status"]) != "ok":
            self._counts[status] += 1
        self._context.progress.advance(1, **self._counts)

    async def _evolve(self, job: QuestionJob, pool_context: PoolContext) -> dict[str, Any]:
        """Make a question's pool and return its rows."""
        assert self._open is not None
        cache: CallCache = JournalCache(self._journal, job.key)
        if self._budget.is_limited:
            cache = CountingCache(cache, self._count_unit, self._counted.setdefault(job.key, set()))
        evolution = Evolution(pool_context, job.question, cache)
        await evolution.run()
        models = {name: role.name for name, role in self._settings.roles.items()}
        digests = self._environment_digests.of(job.question), self._open.tokenizer_digest
        return rows_of(job.question, evolution, models, digests, attempt=self._context.attempt)

    def _count_earlier(self) -> None:
        """Charge the budget with the usage of finished questions."""
        for job in self._own_jobs():
            if self._journal.is_finished(job.key):
                for role, used in orjson.loads(self._stored(job.key)["question"]["usage"]).items():
                    model = self._settings.roles[role].model
                    self._budget.count(model, used["prompt_tokens"], used["completion_tokens"])

    def _count_unit(self, unit: str, prompt_tokens: int, completion_tokens: int) -> None:
        """Charge the budget with a stored answer, at the price of the most expensive role that may have given it."""
        if prompt_tokens or completion_tokens:
            roles = self._settings.roles
            models = [roles[name].model for name in _roles_of_unit(unit) if name in roles] or [roles["policy"].model]
            most_expensive = max(models, key=lambda model: model.cost(prompt_tokens, completion_tokens))
            self._budget.count(most_expensive, prompt_tokens, completion_tokens)

    async def write(self) -> Mapping[str, Any]:
        """Replay and judge unfinished questions, write all rows and return the metrics."""
        writer = PoolsWriter(self._context, self._settings.options.operators)
        if self.check_pending():
            worked = self._context.work_result
            environments, servers = self._environments(), worked.facts.get("servers", {})
            async with replay_pools(self._settings, environments, servers, self._budget, worked.first) as self._open:
                await self._write_to(writer)
        else:
            await self._write_to(writer)
        return writer.finish()

    async def _write_to(self, writer: PoolsWriter) -> None:
        for job in self._jobs():
            finished = self._journal.is_finished(job.key)
            stored = self._finished_rows(job) if finished else await self._replay_unfinished(job)
            stored["question"]["job"] = job.key if finished else None
            writer.add(stored)

    async def _replay_unfinished(self, job: QuestionJob) -> dict[str, Any]:
        """Return the rows of a question that stays unfinished, by replaying its stored answers.

        A request without a stored answer counts as failed.
        """
        worked = self._context.work_result
        cause = worked.causes.get(job.key, worked.first)
        pool_context = self._open.contexts.get(job.question["environment"]) if self._open is not None else None
        if pool_context is None:
            return {"pool": [], "events": [], "question": failed_question_row(job.question, cause), "telemetry": []}
        return await self._evolve(job, pool_context.for_replay(cause))

    def _finished_rows(self, job: QuestionJob) -> dict[str, Any]:
        """Return the rows of a finished question, with its current data set and environment.

        It may have been in another data set when it was finished, and older rows do not name their environment.
        """
        stored, question = self._stored(job.key), job.question
        stored["question"]["dataset"] = question["dataset"]
        for row in stored["pool"]:
            row |= {"dataset": question["dataset"], "environment": question["environment"]}
        return stored

    def _jobs(self) -> Iterator[QuestionJob]:
        return pool_jobs(self._settings, self._context.inputs)


_ROLES = {"llm": ("policy",), "tool": ("summarizer",), "ask": ("critic", "refiner")}


def _roles_of_unit(unit: str) -> tuple[str, ...]:
    """Return the roles that may have given the answer stored under this unit."""
    if unit.startswith("verdict-"):
        return ("judge",)
    return _ROLES.get(unit.rpartition("/")[2].partition("-")[0], ())
