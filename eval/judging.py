"""Ask judge models, as part of the stage `scores`: about answers and trajectories, and for votes on redundant calls.

Each judgement owns its records in the journal, under a digest of everything it depends on. Every reply is cached there,
and the finished row is one record. The journal outlives results and settings, so no request is paid for twice.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import orjson

from treadle.agent.call_cache import CallCache, CountingCache, JournalCache
from treadle.agent.jobs.stage import JobStage
from treadle.agent.judges.model import ModelJudge
from treadle.agent.judges.redundancy import RedundancyJudge
from treadle.agent.model_sessions import ModelSessions
from treadle.agent.role_settings import RoleSettings
from treadle.core import steady_loop
from treadle.core.errors import ContextTooLong
from treadle.core.runs.stage import StageContext, WorkResult
from treadle.core.work_clock import timed_work
from treadle.eval.config import ScoresSettings
from treadle.eval.judge_queue import Judgement, JudgeQueue, check_domains
from treadle.eval.lengths import load_tokenizer
from treadle.eval.rule_scores import RuleScores
from treadle.eval.stored_judgements import StoredJudgements, verdict_fields, vote_fields


class Judging(JobStage[Judgement]):
    """One attempt at the judgements of a stage instance.

    Attributes:
        judge_queue: The judgements to request for each rollout.
        rule_scores: Rule scores that decide whether a judge is asked.
        stored: Finished judgements, from which the rows are written.
    """

    NOUN = "judgements"

    def __init__(self, context: StageContext) -> None:
        self.settings: ScoresSettings = context.settings
        self._options = self.settings.options
        super().__init__(context, self._options)
        trained = tuple(table.digest for table in context.inputs.get("checkpoint", ()))
        self.judge_queue = JudgeQueue(self.settings, trained)
        self.rule_scores = RuleScores(context, self.judge_queue)
        self.stored = StoredJudgements(context, self.judge_queue)
        self._judges: dict[str, ModelJudge] = {}
        self._redundancy: RedundancyJudge | None = None
        self._counted: dict[str, set[str]] = {}
        self._counts: Counter[str] = Counter()

    async def work(self) -> WorkResult:
        """Make the pending judgements."""
        self.stored.copy_finished(self._open_jobs())
        return await super().work()

    def check_pending(self) -> int:
        """Return the number of missing judgements, 0 if none is requested; see `JobStage.check_pending`."""
        return 0 if next(self._jobs(), None) is None else super().check_pending()

    @contextlib.asynccontextmanager
    async def _opened(self, sessions: ModelSessions) -> AsyncIterator[None]:
        """Open only models with pending judgements; the other endpoints need not be up."""
        settings, options = self.settings, self._options
        open_names = {(judgement.is_vote, judgement.judge) for judgement in self._open_jobs()}
        for name, role in settings.judges.items():
            judge = self.judge_queue.judge
            if (False, name) not in open_names:
                continue
            model = await sessions.model(role.name, role.model, role.tokenizer_digest)
            self._judges[name] = ModelJudge(model.for_role("judge", role.sampling), judge)
        if (voter := settings.redundancy) is not None and (True, voter.name) in open_names:
            model = await sessions.model(voter.name, voter.model, voter.tokenizer_digest)
            asked = model.for_role("redundancy", voter.sampling)
            self._redundancy = RedundancyJudge(asked, options.redundancy.votes)
        yield

    async def _run_job(self, job: Judgement) -> None:
        cache: CallCache = JournalCache(self._journal, job.key)
        if self._budget.is_limited:
            known = self._counted.setdefault(job.key, set())
            cache = CountingCache(cache, lambda _, *tokens: self._budget.count(self._role(job).model, *tokens), known)
        ask = self._judge_calls if job.is_vote else self._judge
        with timed_work() as clock:
            said = await ask(job, cache, clock.time() + self._options.judgement_time_s)
        # Without a reply there is no verdict to store, so the judgement stays pending.
        if said["error"] and not said["replies"]:
            raise ContextTooLong(
                f"{said['error']}: serve this judge with a longer context, or leave the judgement out with "
                "--accept-failures (limited by scores.max_error_rate)"
            )
        self._journal.finish(job.key, orjson.dumps(said))
        self._counted.pop(job.key, None)
        self._counts[said["status"]] += 1
        self._context.progress.advance(1, **self._counts)

    async def _judge(self, judgement: Judgement, cache: CallCache, deadline: float) -> dict[str, Any]:
        case = self.judge_queue.case(judgement, deadline)
        verdict = await self._judges[judgement.judge].verdict(case, cache)
        return verdict_fields(case.prediction, verdict)

    async def _judge_calls(self, judgement: Judgement, cache: CallCache, deadline: float) -> dict[str, Any]:
        assert self._redundancy is not None, "votes need a judge"
        return vote_fields(await self._redundancy.vote(self.judge_queue.vote_case(judgement, deadline), cache))

    def _count_earlier(self) -> None:
        """Charge the budget with what earlier attempts spent."""
        for judgement in self._jobs():
            if self._journal.is_finished(judgement.key):
                row = self._stored(judgement.key)
                self._budget.count(self._role(judgement).model, row["prompt_tokens"], row["completion_tokens"])

    def _role(self, judgement: Judgement) -> RoleSettings:
        if not judgement.is_vote:
            return self.settings.judges[judgement.judge]
        assert self.settings.redundancy is not None
        return self.settings.redundancy

    def _jobs(self) -> Iterator[Judgement]:
        """Yield all requested judgements, each once, in the order of the rollouts."""
        seen: set[str] = set()
        for answer, rule in self.rule_scores.answers():
            for judgement in self.judge_queue.about(answer, rule):
                if judgement.key not in seen:
                    seen.add(judgement.key)
                    yield judgement


def work(context: StageContext) -> WorkResult:
    """Make the pending judgements of one stage instance. Do nothing if no judge is configured."""
    judging = Judging(context)
    if judging.judge_queue.is_empty:
        return WorkResult()
    # Fail on a wrong domain or a bad tokenizer before any request is paid for.
    check_domains(judging.judge_queue.judge, judging.rule_scores.rules())
    load_tokenizer(judging.settings.tokenizer, judging.settings.tokenizer_digest)
    judging.rule_scores.store()
    return steady_loop.run(judging.work())
