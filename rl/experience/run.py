"""Make the pool of experience from an existing pool and from rollouts; each batch of rollouts is a job.

Every reply is journaled before it is used, so an interrupted stage does not ask for it again.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import orjson

from treadle.agent.call_cache import CallCache, CountingCache, JournalCache
from treadle.agent.jobs.stage import JobStage
from treadle.agent.model_sessions import ModelSessions
from treadle.core.config import digest_json
from treadle.core.errors import StageFailed
from treadle.core.runs.stage import StageContext
from treadle.rl.experience.author import Author
from treadle.rl.experience.jobs import BatchJob, BatchJobs
from treadle.rl.experience.pool import ExperiencePool
from treadle.rl.experience.record import Experience, read_records
from treadle.rl.experience.roles import open_author
from treadle.rl.experience.settings import ExperienceSettings
from treadle.rl.experience.tables import EXPERIENCE


class ExperienceRun(JobStage[BatchJob]):
    """State of one attempt of the stage."""

    NOUN = "batches"

    def __init__(self, context: StageContext) -> None:
        self._settings: ExperienceSettings = context.settings
        super().__init__(context, self._settings.options)
        self._batches = BatchJobs(self._settings, context.inputs)
        self._author: Author | None = None
        self._counted: dict[str, set[str]] = {}

    @contextlib.asynccontextmanager
    async def _opened(self, sessions: ModelSessions) -> AsyncIterator[None]:
        settings = self._settings
        assert settings.summariser is not None and settings.validator is not None
        roles = (settings.summariser, settings.validator)
        self._author = await open_author(sessions, roles, settings.options, settings.seed)
        yield

    async def _run_job(self, job: BatchJob) -> None:
        assert self._author is not None
        workspace = self._settings.options.workspace

        def head(item: Mapping[str, Any]) -> Experience:
            return Experience.from_json(
                {**item, "workspace": workspace, "question_keys": [job.question_key], "step": 0}
            )

        written = await self._author.write(job.played, head, cache=self._cache(job))
        stored = {
            "records": [[record.as_json(), verdict] for record, verdict in written.records],
            "problem": written.problem,
            "num_malformed": written.num_malformed,
            "used": written.used,
        }
        self._journal.finish(job.key, orjson.dumps(stored))
        self._context.progress.advance(1)

    def _cache(self, job: BatchJob) -> CallCache:
        cache = JournalCache(self._journal, job.key)
        if not self._budget.is_limited:
            return cache
        return CountingCache(cache, self._count_unit, self._counted.setdefault(job.key, set()))

    def _count_earlier(self) -> None:
        """Count the tokens of jobs that earlier attempts finished against the budget."""
        for job in self._own_jobs():
            if self._journal.is_finished(job.key):
                for role, used in self._stored(job.key)["used"].items():
                    self._count_unit("validate" if role == "validator" else "summary", *used)

    def _count_unit(self, unit: str, prompt_tokens: int, completion_tokens: int) -> None:
        settings = self._settings
        role = settings.validator if unit.startswith("validate") else settings.summariser
        assert role is not None
        self._budget.count(role.model, prompt_tokens, completion_tokens)

    def _jobs(self) -> Iterator[BatchJob]:
        return iter(self._batches)

    def write(self) -> Mapping[str, Any]:
        """Write a row for each record and return the metrics; raise StageFailed if the pool would be empty."""
        options = self._settings.options
        pool = ExperiencePool(options.workspace, options.similarity)
        counts: Counter[str] = Counter()
        self._write_rows(self._existing_rows(pool), counts)
        if options.initialise:
            self._check_batches()
            self._write_rows(self._new_rows(pool, counts), counts)
        if not len(pool):
            found = ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())) or "no record"
            raise StageFailed(
                f"{self._context.address}: no experience was stored ({found}); check the replies of the summariser and "
                "the validator, or set experience.pool"
            )
        return {"records": len(pool), **dict(sorted(counts.items()))}

    def _check_batches(self) -> None:
        """Raise StageFailed if there is nothing to summarise; otherwise raise as `check_pending` does."""
        if next(iter(self._batches), None) is None:
            for _ in self._batches:
                pass
            why = ", ".join(f"{reason} {count:,}" for reason, count in sorted(self._batches.left_out.items()))
            raise StageFailed(
                f"{self._context.address}: there is no scored rollout of the split train to learn from "
                f"({why or 'there are no rollouts'}); roll out the policy on it, or set experience.initialise = false"
            )
        self.check_pending()

    def _write_rows(self, rows: Iterator[dict[str, Any]], counts: Counter[str]) -> None:
        for row in rows:
            counts[row["status"]] += 1
            self._context.write(EXPERIENCE.kind, [row])

    def _existing_rows(self, pool: ExperiencePool) -> Iterator[dict[str, Any]]:
        """Yield the rows of the existing pool; raise StageFailed if it was made from held-out tasks."""
        held_out = self._batches.held_out
        for number, record in enumerate(read_records(self._settings.options.pool)):
            if known := held_out.intersection(record.question_keys):
                raise StageFailed(
                    f"{self._context.address}: record {number + 1:,} of experience.pool comes from task {min(known)}, "
                    "which is held out; a policy that sees it could not be measured. Remove it, or another pool"
                )
            status = _added(pool, record)
            yield _row(record, status, "file", digest_json(["file", number])[:16])

    def _new_rows(self, pool: ExperiencePool, counts: Counter[str]) -> Iterator[dict[str, Any]]:
        for job in self._batches:
            if not self._journal.is_finished(job.key):
                counts["failed_batches"] += 1
                continue
            stored = self._stored(job.key)
            counts.update(batches=1, malformed=stored["num_malformed"])
            counts[f"summary_{stored['problem'] or 'read'}"] += 1
            for role, (prompt, sampled) in stored["used"].items():
                counts.update({f"{role}_prompt_tokens": prompt, f"{role}_completion_tokens": sampled})
            for number, (data, verdict) in enumerate(stored["records"]):
                record = Experience.from_json(data)
                status = _added(pool, record) if verdict == "valid" else verdict
                yield _row(record, status, "rollouts", digest_json([job.key, number])[:16])


def _added(pool: ExperiencePool, record: Experience) -> str:
    """Add a record to the pool and return its status."""
    if pool.add(record):
        return "stored"
    return "duplicate" if record.workspace == pool.workspace else "foreign"


def _row(record: Experience, status: str, source: str, key: str) -> dict[str, Any]:
    data = record.as_json()
    del data["step"]
    return {**data, "record_key": key, "status": status, "source": source}
