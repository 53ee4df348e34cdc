"""Request judgements for the stage `scores`: verdicts on answers and trajectories, votes on calls, picks of attempts.

The journal stores every reply and the finished row of a judgement under a digest of everything that the judgement
depends on. The journal is kept when results are deleted or settings change, so no request is paid for twice.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import orjson

from treadle.agent.call_cache import CallCache, CountingCache, JournalCache
from treadle.agent.jobs.stage import JobStage
from treadle.agent.model_sessions import ModelSessions
from treadle.agent.role_settings import RoleSettings
from treadle.core import steady_loop
from treadle.core.errors import ContextTooLong, StageFailed
from treadle.core.runs.stage import StageContext, WorkResult
from treadle.core.work_clock import timed_work
from treadle.eval.asking.choices import AttemptChoices
from treadle.eval.asking.open_judges import OpenJudges
from treadle.eval.config import ScoresSettings
from treadle.eval.judge_queue import Judgement, JudgeQueue, check_domains
from treadle.eval.lengths import load_tokenizer
from treadle.eval.rule_scores import RuleScores
from treadle.eval.stored_judgements import StoredJudgements


class Judging(JobStage[Judgement]):
    """One attempt at the judgements of a stage instance.

    Attributes:
        judge_queue: The judgements to request for each rollout.
        choices: The choices to request among the attempts at each question.
        rule_scores: Rule scores that decide whether a judge is asked.
        stored: Finished judgements, from which the rows are written.
    """

    NOUN = "judgements"

    def __init__(self, context: StageContext) -> None:
        self.settings: ScoresSettings = context.settings
        self._options = self.settings.options
        super().__init__(context, self._options)
        self._rollouts = context.inputs["rollouts"]
        trained = tuple(table.digest for table in context.inputs.get("checkpoint", ()))
        self.judge_queue = JudgeQueue(self.settings, trained)
        self.choices = AttemptChoices(self.settings, trained)
        self.rule_scores = RuleScores(context, self.judge_queue)
        self.stored = StoredJudgements(context, self.judge_queue)
        self._judges = OpenJudges(self.settings, self.judge_queue, self.choices)
        self._counted: dict[str, set[str]] = {}
        self._counts: Counter[str] = Counter()

    @property
    def is_empty(self) -> bool:
        """True if no judge is configured."""
        return self.judge_queue.is_empty and self.choices.role is None

    def check_attempts(self) -> None:
        """Raise StageFailed if a choice is configured and no question has enough attempts for one."""
        wanted = self._options.best_of.attempts
        if self.choices.role is not None and not self.choices.collector(self._rollouts).num_questions:
            raise StageFailed(
                f"{self._context.address}: no question has {wanted} rollouts to choose from; raise "
                "rollouts.samples_per_question, lower scores.best_of.attempts, or leave out scores.best_of.model"
            )

    def picks(self) -> dict[str, str]:
        """Return rollout key -> value of the column `best_of`, for all attempts that are compared."""
        found: dict[str, str] = {}
        if self.choices.role is None:
            return found
        collector = self.choices.collector(self._rollouts)
        for answer, _ in self.rule_scores.answers():
            if (group := collector.add(answer)) is not None:
                row = None if group.judgement is None else self.stored.row(group.judgement)
                found |= group.states(None if row is None else row["picked"])
        return found

    async def work(self) -> WorkResult:
        """Make the pending judgements."""
        self.stored.copy_finished(self._open_jobs())
        return await super().work()

    def check_pending(self) -> int:
        """Return the number of missing judgements, 0 if no judgements are requested; see `JobStage.check_pending`."""
        return 0 if next(self._jobs(), None) is None else super().check_pending()

    @contextlib.asynccontextmanager
    async def _opened(self, sessions: ModelSessions) -> AsyncIterator[None]:
        """Open only models with pending judgements; the other endpoints need not be up."""
        await self._judges.open(sessions, {(judgement.kind, judgement.judge) for judgement in self._open_jobs()})
        yield

    async def _run_job(self, job: Judgement) -> None:
        cache: CallCache = JournalCache(self._journal, job.key)
        if self._budget.is_limited:
            known = self._counted.setdefault(job.key, set())
            cache = CountingCache(cache, lambda _, *tokens: self._budget.count(self._role(job).model, *tokens), known)
        with timed_work() as clock:
            said = await self._judges.ask(job, cache, clock.time() + self._options.judgement_time_s)
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

    def _count_earlier(self) -> None:
        """Count the tokens of earlier attempts against the budget."""
        for judgement in self._jobs():
            if self._journal.is_finished(judgement.key):
                row = self._stored(judgement.key)
                self._budget.count(self._role(judgement).model, row["prompt_tokens"], row["completion_tokens"])

    def _role(self, judgement: Judgement) -> RoleSettings:
        settings = self.settings
        role = settings.redundancy if judgement.is_vote else settings.best_of if judgement.attempts else None
        return settings.judges[judgement.judge] if role is None else role

    def _jobs(self) -> Iterator[Judgement]:
        """Yield all requested judgements, each once, in the order of the rollouts."""
        seen: set[str] = set()
        collector = self.choices.collector(self._rollouts)
        for answer, rule in self.rule_scores.answers():
            group = collector.add(answer)
            chosen = () if group is None or group.judgement is None else (group.judgement,)
            for judgement in (*self.judge_queue.about(answer, rule), *chosen):
                if judgement.key not in seen:
                    seen.add(judgement.key)
                    yield judgement


def work(context: StageContext) -> WorkResult:
    """Make the pending judgements of one stage instance. Do nothing if no judge is configured."""
    judging = Judging(context)
    if judging.is_empty:
        return WorkResult()
    judging.check_attempts()
    # Fail on a wrong domain or a bad tokenizer before any request is paid for.
    check_domains(judging.judge_queue.judge, judging.rule_scores.rules())
    load_tokenizer(judging.settings.tokenizer, judging.settings.tokenizer_digest)
    judging.rule_scores.store()
    return steady_loop.run(judging.work())
