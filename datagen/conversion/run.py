"""Let a teacher rewrite trajectories: each one in its own job, from a journal that resumes it.

Every reply of the teacher is stored before it is used, so an interrupted stage asks for none of them again.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import orjson

from treadle.agent.call_cache import CallCache, CountingCache, JournalCache
from treadle.agent.jobs.stage import JobStage
from treadle.agent.model_sessions import ModelSessions
from treadle.agent.role import Reply, RoleModel
from treadle.core.chat import ChatTokenizer
from treadle.core.engines.config import EMBEDDED
from treadle.core.engines.serving import embedded_folder
from treadle.core.errors import ConfigError, ContextTooLong, DeadlineExceeded, StageFailed
from treadle.core.runs.stage import StageContext
from treadle.core.seeds import derive_seed
from treadle.core.work_clock import timed_work
from treadle.datagen.conversion.jobs import (
    LEFT_OUT,
    ConversionJob,
    all_sources,
    conversion_jobs,
    job_of,
    key_of,
    target_dialect,
)
from treadle.datagen.conversion.rewrites import Rewrite, RewriteRefused, checked_rewrite
from treadle.datagen.conversion.rows import NO_REWRITE, accepted, metrics_of, refused, row_of
from treadle.datagen.conversion.settings import ConversionSettings
from treadle.datagen.conversion.sources import ConversionSource
from treadle.datagen.conversion.tables import CONVERSIONS
from treadle.datagen.prompts import CONVERT, PromptSet
from treadle.datagen.texts.rules import OVER_RATIO, over_ratio

_log = logging.getLogger(__name__)

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
        self._tokenizer = _load_tokenizer(self._settings)
        self._teacher: RoleModel | None = None
        self._counts: Counter[str] = Counter()
        self._counted: dict[str, set[str]] = {}

    @contextlib.asynccontextmanager
    async def _opened(self, sessions: ModelSessions) -> AsyncIterator[None]:
        role = self._settings.teacher
        session = await sessions.model(role.name, role.model, role.tokenizer_digest)
        self._teacher = session.for_role("teacher", role.sampling, only_messages=True)
        yield

    async def _run_job(self, job: ConversionJob) -> None:
        stored = await self._rewrite(job)
        self._journal.finish(job.key, orjson.dumps(stored))
        self._counts[stored["status"]] += 1
        self._context.progress.advance(1, **self._counts)

    async def _rewrite(self, job: ConversionJob) -> dict[str, Any]:
        """Return what a job decides: the first rewrite that follows all rules, or why the last one does not."""
        cache: CallCache = JournalCache(self._journal, job.key)
        if self._budget.is_limited:
            cache = CountingCache(cache, self._count_unit, self._counted.setdefault(job.key, set()))
        with timed_work() as clock:
            return await self._first_accepted(job, cache, clock.time() + self._settings.options.rewrite_time_s)

    async def _first_accepted(self, job: ConversionJob, cache: CallCache, deadline: float) -> dict[str, Any]:
        stored: dict[str, Any] = {}
        usage = Counter[str]()
        for number in range(self._settings.options.attempts):
            try:
                reply = await self._ask(job.source, number, cache, deadline)
            except ContextTooLong:
                return refused(
                    stored, "prompt_too_long", "the transcript does not fit into the teacher's window", usage
                )
            except DeadlineExceeded:
                return refused(stored, "timeout", "the time of the trajectory is over", usage)
            usage.update(num_attempts=1, prompt_tokens=reply.prompt_tokens, completion_tokens=reply.completion_tokens)
            try:
                made, num_tokens = self._checked(reply, job.source)
            except RewriteRefused as error:
                stored = refused({"reply": reply.text}, error.reason, error.detail, usage)
            else:
                return accepted(made, num_tokens, usage)
        return stored

    async def _ask(self, source: ConversionSource, number: int, cache: CallCache, deadline: float) -> Reply:
        assert self._teacher is not None
        values = {
            "call": self._dialect.splitting[0],
            "question": source.task.user_message,
            "transcript": source.whole.text,
        }
        return await self._teacher.ask(
            self._prompts.messages(CONVERT[0], values),
            cache=cache,
            unit=f"ask-{number}",
            seed=derive_seed(self._settings.seed, "conversion", source.whole.key, number),
            session=source.whole.key,
            deadline=deadline,
        )

    def _checked(self, reply: Reply, source: ConversionSource) -> tuple[Rewrite, int]:
        """Return the rewrite and its number of tokens; raise RewriteRefused if it breaks a rule."""
        assert source.facts is not None
        options = self._settings.options
        if reply.is_truncated:
            raise RewriteRefused("reply_truncated")
        made = checked_rewrite(reply.text, source.facts, self._dialect)
        if made.num_searches < options.min_searches:
            raise RewriteRefused("too_few_searches", f"{made.num_searches} queries, at least {options.min_searches}")
        num_tokens = len(self._tokenizer.encode(made.text)) if self._tokenizer is not None else 0
        if options.max_tokens is not None and num_tokens > options.max_tokens:
            raise RewriteRefused("too_long", f"{num_tokens:,} tokens, at most {options.max_tokens:,}")
        return made, num_tokens

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
        """Return the keys of the accepted rewrites of which there are too many."""
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


def _load_tokenizer(settings: ConversionSettings) -> ChatTokenizer | None:
    folder = settings.tokenizer
    if folder is None:
        return None
    tokenizer = ChatTokenizer.load(embedded_folder("tokenizer") if str(folder) == EMBEDDED else folder)
    if settings.tokenizer_digest not in ("", tokenizer.digest):
        raise ConfigError(
            f"conversion.tokenizer: the tokenizer in {folder} is not the one that this run was made with; restore its "
            "files, or start a new run"
        )
    return tokenizer
