"""Let a teacher rewrite trajectories, each one in its own job; the journal allows a stopped stage to resume.

Every reply of the teacher is stored before it is used, so a resumed stage requests no stored reply again.
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
from treadle.core.errors import StageFailed
from treadle.core.runs.stage import StageContext
from treadle.datagen.conversion.jobs import (
    LEFT_OUT,
    ConversionJob,
    all_sources,
    conversion_jobs,
    job_of,
    key_of,
    target_dialect,
)
from treadle.datagen.conversion.rows import NO_REWRITE, metrics_of, refused, row_of
from treadle.datagen.conversion.settings import ConversionSettings
from treadle.datagen.conversion.tables import CONVERSIONS
from treadle.datagen.conversion.teacher import Teacher
from treadle.datagen.prompts import CONVERT, PromptSet
from treadle.datagen.texts.rules import OVER_RATIO, over_ratio
from treadle.stages.tokenizers import load_tokenizer

_CHUNK_ROWS = 128


class ConversionRun(JobStage[ConversionJob]):
    """State of one attempt of the stage."""

    NOUN = "trajectories"

    def __init__(self, context: StageContext) -> None:
        self._settings: ConversionSettings = context.settings
        super().__init__(context, self._settings.options)
        self._dialect = target_dialect(self._settings.target, self._settings.options.environment)
        self._prompts = PromptSet(self._settings.options.prompts, CONVERT, "conversion.prompts")
        self._prompts.check()
        self._teacher: Teacher | None = None
        self._counts: Counter[str] = Counter()
        self._counted: dict[str, set[str]] = {}

    @contextlib.asynccontextmanager
    async def _opened(self, sessions: ModelSessions) -> AsyncIterator[None]:
        role = self._settings.teacher
        session = await sessions.model(role.name, role.model, role.tokenizer_digest)
        settings = self._settings
        folder, digest = settings.tokenizer, settings.tokenizer_digest
        self._teacher = Teacher(
            model=session.for_role("teacher", role.sampling, only_messages=True),
            options=settings.options,
            dialect=self._dialect,
            prompts=self._prompts,
            tokenizer=load_tokenizer(folder, digest) if folder is not None else None,
            seed=settings.seed,
        )
        yield

    async def _run_job(self, job: ConversionJob) -> None:
        stored = await self._rewrite(job)
        self._journal.finish(job.key, orjson.dumps(stored))
        self._counts[stored["status"]] += 1
        self._context.progress.advance(1, **self._counts)

    async def _rewrite(self, job: ConversionJob) -> dict[str, Any]:
        cache: CallCache = JournalCache(self._journal, job.key)
        if self._budget.is_limited:
            cache = CountingCache(cache, self._count_unit, self._counted.setdefault(job.key, set()))
        assert self._teacher is not None
        return await self._teacher.rewrite(job.source, cache)

    def _count_earlier(self) -> None:
        """Charge the budget with what finished jobs used."""
        for job in self._own_jobs():
            if self._journal.is_finished(job.key):
                stored = self._stored(job.key)
                self._count_unit("", stored["prompt_tokens"], stored["completion_tokens"])

    def _count_unit(self, unit: str, prompt_tokens: int, completion_tokens: int) -> None:
        self._budget.count(self._settings.teacher.model, prompt_tokens, completion_tokens)

    def _jobs(self) -> Iterator[ConversionJob]:
        return conversion_jobs(self._settings, self._context.inputs)

    def write(self) -> Mapping[str, Any]:
        """Write a row for each trajectory and return the metrics; raise StageFailed if none was rewritten."""
        reasons = Counter(source.reason for source in all_sources(self._settings, self._context.inputs))
        num_sources = reasons.total()
        if not num_sources:
            raise StageFailed("there are no trajectories to rewrite; check the result of the stage `rollouts`")
        if not reasons[""]:
            raise StageFailed(f"none of the {num_sources:,} trajectories can be rewritten: {_in_words(reasons)}")
        self.check_pending()
        rows: list[dict[str, Any]] = []
        counted = []
        for row in self._rows(self._left_out()):
            counted.append({name: row[name] for name in ("status", "reason", "num_searches", "widest", *_USAGE)})
            rows.append(row)
            if len(rows) == _CHUNK_ROWS:
                self._context.write(CONVERSIONS.kind, rows)
                rows = []
        self._context.write(CONVERSIONS.kind, rows)
        if not any(row["status"] == "converted" for row in counted):
            refusals = Counter(row["reason"] for row in counted)
            raise StageFailed(f"none of the {num_sources:,} trajectories was rewritten: {_in_words(refusals)}")
        return metrics_of(counted)

    def _left_out(self) -> set[str]:
        """Return the keys of the sources whose accepted rewrites are left out, so that `parallel_share` is kept."""
        kinds = {}
        for job in self._jobs():
            if self._journal.is_finished(job.key) and (stored := self._stored(job.key))["status"] == "converted":
                kinds[job.source.whole.key] = stored["widest"] > 1
        return over_ratio(kinds, self._settings.options.parallel_share, self._settings.seed)

    def _rows(self, left_out: set[str]) -> Iterator[dict[str, Any]]:
        shared, worked = key_of(self._settings), self._context.work_result
        for source in all_sources(self._settings, self._context.inputs):
            key, stored = None, dict[str, Any]()
            if source.facts is None:
                stored = refused({"status": "not_asked"}, source.reason, "", Counter())
            elif self._journal.is_finished((job := job_of(shared, source, self._settings.seed)).key):
                key, stored = job.key, self._stored(job.key)
                if source.whole.key in left_out:
                    detail = f"more than parallel_share = {self._settings.options.parallel_share:g} allows"
                    stored |= {"status": LEFT_OUT, "reason": OVER_RATIO, "reasons": [OVER_RATIO], "detail": detail}
            else:
                cause = worked.causes.get(job.key, worked.first)
                stored = refused({"status": "failed"}, "failed", cause, Counter())
            yield row_of(source, {**NO_REWRITE, **stored}, self._settings, self._dialect, job=key)


_USAGE = ("num_attempts", "prompt_tokens", "completion_tokens")


def _in_words(reasons: Mapping[str, int]) -> str:
    ranked = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{code} {count:,}" for code, count in ranked if code and count)
