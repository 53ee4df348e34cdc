"""Sample alternatives for turns; each turn is a job.

Every completion is journaled before it is used, so an interrupted stage does not request it again.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import orjson

from treadle.agent.call_cache import JournalCache
from treadle.agent.dialects.base import Dialect
from treadle.agent.jobs.stage import JobStage
from treadle.agent.model_sessions import ModelSession, ModelSessions, check_sampling
from treadle.core.errors import ConfigError, ContextTooLong, StageFailed
from treadle.core.gather import gather_all
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.core.runs.stage import StageContext
from treadle.core.seeds import derive_seed
from treadle.core.work_clock import timed_work
from treadle.environments.mixture import find_environment
from treadle.rl.candidates.candidate import candidate_of
from treadle.rl.candidates.jobs import TurnJob, TurnJobs
from treadle.rl.candidates.settings import CandidatesSettings
from treadle.rl.preferences.tables import CANDIDATES


class CandidatesRun(JobStage[TurnJob]):
    """State of one attempt of the stage."""

    NOUN = "turns"

    def __init__(self, context: StageContext) -> None:
        self._settings: CandidatesSettings = context.settings
        super().__init__(context, self._settings.options)
        self._turns = TurnJobs(self._settings, context.inputs)
        self._session: ModelSession | None = None
        self._dialects: dict[str, Dialect] = {}

    @contextlib.asynccontextmanager
    async def _opened(self, sessions: ModelSessions) -> AsyncIterator[None]:
        settings = self._settings
        session = await sessions.model(settings.model_name, settings.model, settings.tokenizer_digest)
        session.check_token_ids()
        if session.codec is None:
            raise ConfigError(
                f"models.{settings.model_name}: candidates continue prompts of token ids, which its server does not "
                "take; serve it with vLLM, and set its tokenizer"
            )
        check_sampling("policy", settings.model_name, settings.options.sampling, session.facts)
        self._session = session
        self._dialects = {name: session.bound(one.turn_dialect) for name, one in settings.named_environments().items()}
        yield

    async def _run_job(self, job: TurnJob) -> None:
        assert self._session is not None
        codec = self._session.codec
        assert codec is not None
        with timed_work() as clock:
            deadline = clock.time() + self._settings.options.turn_time_s
            completions = await self._complete_all(job, deadline)
        dialect = self._dialect_of(job)
        made = [candidate_of(completion, codec, dialect) for completion in completions]
        used = [sum(one.prompt_tokens for one in completions), sum(one.completion_tokens for one in completions)]
        self._journal.finish(job.key, orjson.dumps({"candidates": made, "used": used}))
        self._context.progress.advance(1)

    def _dialect_of(self, job: TurnJob) -> Dialect:
        name = job.head["environment"]
        find_environment(self._settings.named_environments(), name)
        return self._dialects[name]

    async def _complete_all(self, job: TurnJob, deadline: float) -> list[Completion]:
        """Return the completions of a turn; none if the window has no room for one."""
        assert self._session is not None
        prompt, options = job.head["prompt_ids"], self._settings.options
        window = self._session.facts.max_model_len
        max_tokens = options.sampling.max_tokens if window is None else window - len(prompt)
        max_tokens = min(max_tokens, options.sampling.max_tokens)
        if max_tokens < 1:
            return []
        numbers = range(options.num_candidates)
        try:
            return await gather_all([self._complete(job, number, max_tokens, deadline) for number in numbers])
        except ContextTooLong:
            return []

    async def _complete(self, job: TurnJob, number: int, max_tokens: int, deadline: float) -> Completion:
        assert self._session is not None
        cache, unit = JournalCache(self._journal, job.key), str(number)
        if (known := cache.get(unit)) is not None:
            return Completion.from_json(known)
        turn_key = job.head["turn_key"]
        request = CompletionRequest(
            prompt=list(job.head["prompt_ids"]),
            max_tokens=max_tokens,
            sampling=self._settings.options.sampling,
            stop=self._dialect_of(job).stops,
            seed=derive_seed(self._settings.seed, "candidate", turn_key, number),
        )
        completion = await self._session.meter.complete(request, session=turn_key, deadline=deadline)
        cache.append(unit, completion.to_json())
        return completion

    def _count_earlier(self) -> None:
        """Count the tokens of earlier attempts against the budget."""
        for job in self._own_jobs():
            if self._journal.is_finished(job.key):
                self._budget.count(self._settings.model, *self._stored(job.key)["used"])
                continue
            for unit in self._journal.units(job.key):
                made = Completion.from_json(self._journal.get(job.key, unit) or b"")
                self._budget.count(self._settings.model, made.prompt_tokens, made.completion_tokens)

    def _jobs(self) -> Iterator[TurnJob]:
        return iter(self._turns)

    def write(self) -> Mapping[str, Any]:
        """Write a row for each candidate and return the metrics; raise StageFailed if there is no candidate."""
        num_turns = sum(1 for _ in self._turns)
        if not num_turns:
            why = ", ".join(f"{reason} {count:,}" for reason, count in sorted(self._turns.left_out.items()))
            raise StageFailed(
                f"{self._context.address}: {len(self._turns.selected):,} rollouts of the split train have no turn with "
                f"token ids ({why or 'there are none'}); roll out the policy over vLLM"
            )
        self.check_pending()
        counts: Counter[str] = Counter()
        for job in self._turns:
            if not self._journal.is_finished(job.key):
                counts["failed_turns"] += 1
                continue
            made = self._stored(job.key)["candidates"]
            self._context.write(
                CANDIDATES.kind, [{**job.head, "candidate": number, **one} for number, one in enumerate(made)]
            )
            counts.update(turns=1, candidates=len(made), full_contexts=not made)
            counts.update(
                truncated=sum(one["truncated"] for one in made), tokens=sum(one["num_tokens"] for one in made)
            )
        if not counts["candidates"]:
            raise StageFailed(f"{self._context.address}: the window has no room for any turn; raise max_model_len")
        left_out = {f"left_out.{reason}": count for reason, count in sorted(self._turns.left_out.items())}
        return {"rollouts": len(self._turns.selected), **dict(sorted(counts.items())), **left_out}
