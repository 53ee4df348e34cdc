"""Ask judge models, as part of the stage `scores`: about answers and trajectories, and for votes on redundant calls.

Each judgement owns its records in the journal, under a digest of everything it depends on. Every reply is cached there,
and the finished row is one record. The journal outlives results and settings, so no request is paid for twice. Rule
scores that decide whether a judge is asked are stored as well: they can depend on resource limits, and a retry must
make the same judgements as the first attempt.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import orjson

from treadle.agent.call_cache import CallCache, CountingCache, JournalCache
from treadle.agent.jobs.stage import JobStage
from treadle.agent.judges.cases import Verdict
from treadle.agent.judges.model import ModelJudge
from treadle.agent.judges.redundancy import RedundancyJudge, Vote, cached_votes
from treadle.agent.judges.rules import SymbolicLimits, rules_digest
from treadle.agent.model_sessions import ModelSessions
from treadle.agent.role_settings import RoleSettings
from treadle.core import steady_loop
from treadle.core.answers.score import Score
from treadle.core.config import digest_json, semantic_dump
from treadle.core.errors import ArtifactError, ContextTooLong
from treadle.core.runs.stage import StageContext, WorkResult
from treadle.core.tables import part_items
from treadle.core.work_clock import timed_work
from treadle.environments.scorers.base import no_verdict
from treadle.eval.answers import Answer, answers, open_scorers
from treadle.eval.config import ScoresOptions, ScoresSettings
from treadle.eval.judge_queue import REDUNDANCY, Judgement, JudgeQueue, check_domains
from treadle.eval.lengths import load_tokenizer
from treadle.eval.tables import JUDGEMENTS
from treadle.eval.verdicts import FAILED as UNREADABLE
from treadle.eval.verdicts import FALLBACK_RULE, PARSED, JudgeVerdict

_log = logging.getLogger(__name__)

RULES = "rules"
"""Journal owner of the stored rule scores."""


class Judging(JobStage[Judgement]):
    """One attempt at the judgements of a stage instance. Also reads them back when the rows are written."""

    NOUN = "judgements"

    def __init__(self, context: StageContext) -> None:
        self.settings: ScoresSettings = context.settings
        self._options = self.settings.options
        super().__init__(context, self._options)
        trained = tuple(table.digest for table in context.inputs.get("checkpoint", ()))
        self.judge_queue = JudgeQueue(self.settings, trained)
        self._rules = rules_digest(_limits(self._options), self._options.f1_threshold)
        self._judges: dict[str, ModelJudge] = {}
        self._redundancy: RedundancyJudge | None = None
        self._counted: dict[str, set[str]] = {}
        self._counts: Counter[str] = Counter()

    def store_rule_scores(self) -> None:
        """Compute and store the rule scores of answers that a judge may be asked about."""
        options = self._options
        if not self.settings.judges or not self.judge_queue.judge.NEEDS_ANSWERS:
            return
        with open_scorers(self.settings) as scorers, ThreadPoolExecutor(options.symbolic_workers) as threads:
            for batch in self._batches():
                wanted = (answer for answer in batch if self.judge_queue.needs_rule_score(answer))
                unknown = [answer for answer in wanted if self.stored_rule_score(answer) is None]
                for answer, score in zip(unknown, threads.map(scorers.rule_score, unknown), strict=True):
                    if score.error is None:  # A failed score is not stored, so that the next attempt computes it again.
                        self._journal.append(RULES, self._rule_unit(answer), orjson.dumps(asdict(score)))

    def rules(self) -> set[str]:
        """Return the rules of the run's questions."""
        pairs = {
            (row["scorer"], row["domain"])
            for table in self._context.inputs["questions"]
            for row in table.rows(("scorer", "domain"))
        }
        return {scorer or domain for scorer, domain in pairs}

    async def work(self) -> WorkResult:
        """Make the pending judgements."""
        self._copy_finished_judgements()
        return await super().work()

    def check_pending(self) -> int:
        """Return the number of missing judgements, 0 if none is requested; see `JobStage.check_pending`."""
        return 0 if next(self._jobs(), None) is None else super().check_pending()

    def row(self, judgement: Judgement) -> dict[str, Any] | None:
        """Return the row of a judgement, or None if it could not be made.

        Votes already paid for count even if the remaining votes on the trajectory are missing.
        """
        if self._journal.is_finished(judgement.key):
            said = self._stored(judgement.key)
        else:
            vote = self._votes_so_far(judgement)
            if vote is None:
                return None
            said = _vote_fields(vote)
        if said["grade"] is not None:  # Which grades are right may have changed since.
            said = {**said, "correct": self.judge_queue.judge.is_correct(said["grade"])}
        # The judge and the rollout may have had other names when the judgement was made.
        return {**_head(judgement), **said}

    def judge_verdict(self, judgement: Judgement) -> JudgeVerdict:
        """Return a judge's verdict on an answer."""
        row = self.row(judgement)
        if row is None:
            return JudgeVerdict(None, FALLBACK_RULE)
        status = PARSED if row["status"] == PARSED else UNREADABLE
        parts = {part["name"]: part["value"] for part in row["parts"]}
        return JudgeVerdict(row["correct"], status, tuple(row["replies"]), row["grade"], parts)

    def stored_rule_score(self, answer: Answer) -> Score | None:
        """Return the stored rule score of an answer, or None if none is stored."""
        if not self.judge_queue.needs_rule_score(answer):
            return None
        known = self._journal.get(RULES, self._rule_unit(answer))
        return None if known is None else Score(**orjson.loads(known))

    def _copy_finished_judgements(self) -> None:
        """Copy finished judgements from the current result, so that a missing journal does not cause paying twice."""
        earlier = self._context.earlier(JUDGEMENTS.kind)
        wanted = {judgement.key for judgement in self._open_jobs()} if earlier is not None else set()
        if earlier is None or not wanted:
            return
        try:
            for row in earlier.rows():
                if row["judgement_key"] in wanted and _is_final(row):
                    said = {name: value for name, value in row.items() if name not in _HEAD}
                    self._journal.finish(row["judgement_key"], orjson.dumps(said))
        except ArtifactError as error:
            _log.warning("earlier judgements cannot be read: %s", error)

    def _rule_unit(self, answer: Answer) -> str:
        """Return a digest of everything the rule score depends on."""
        gold, entry = answer.gold, self.settings.scorers.get(answer.gold.rule)
        rule = [gold.rule, semantic_dump(entry) if entry is not None else None]
        return digest_json([self._rules, rule, gold.answers, gold.choices, answer.is_answered, answer.prediction])

    def _votes_so_far(self, judgement: Judgement) -> Vote | None:
        if judgement.kind != REDUNDANCY:
            return None
        return cached_votes(JournalCache(self._journal, judgement.key), self._options.redundancy.votes)

    @contextlib.asynccontextmanager
    async def _opened(self, sessions: ModelSessions) -> AsyncIterator[None]:
        """Open only models with pending judgements; the other endpoints need not be up."""
        settings, options = self.settings, self._options
        open_names = {(judgement.kind, judgement.judge) for judgement in self._open_jobs()}
        for name, role in settings.judges.items():
            judge = self.judge_queue.judge
            if (judge.kind, name) not in open_names:
                continue
            model = await sessions.model(role.name, role.model, role.tokenizer_digest)
            self._judges[name] = ModelJudge(model.for_role("judge", role.sampling), judge)
        if (voter := settings.redundancy) is not None and (REDUNDANCY, voter.name) in open_names:
            model = await sessions.model(voter.name, voter.model, voter.tokenizer_digest)
            asked = model.for_role("redundancy", voter.sampling)
            self._redundancy = RedundancyJudge(asked, options.redundancy.votes)
        yield

    async def _run_job(self, job: Judgement) -> None:
        cache: CallCache = JournalCache(self._journal, job.key)
        if self._budget.is_limited:
            known = self._counted.setdefault(job.key, set())
            cache = CountingCache(cache, lambda _, *tokens: self._budget.count(self._role(job).model, *tokens), known)
        ask = self._judge_calls if job.kind == REDUNDANCY else self._judge
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
        facts = {"prediction": case.prediction, "correct": verdict.correct, "grade": verdict.grade}
        return _said(verdict, verdict.correct is not None, **facts, parts=part_items(verdict.parts))

    async def _judge_calls(self, judgement: Judgement, cache: CallCache, deadline: float) -> dict[str, Any]:
        assert self._redundancy is not None, "votes need a judge"
        return _vote_fields(await self._redundancy.vote(self.judge_queue.vote_case(judgement, deadline), cache))

    def _count_earlier(self) -> None:
        """Charge the budget with what earlier attempts spent."""
        for judgement in self._jobs():
            if self._journal.is_finished(judgement.key):
                row = self._stored(judgement.key)
                self._budget.count(self._role(judgement).model, row["prompt_tokens"], row["completion_tokens"])

    def _role(self, judgement: Judgement) -> RoleSettings:
        if judgement.kind != REDUNDANCY:
            return self.settings.judges[judgement.judge]
        assert self.settings.redundancy is not None
        return self.settings.redundancy

    def _jobs(self) -> Iterator[Judgement]:
        """Yield all requested judgements, each once, in the order of the rollouts."""
        seen: set[str] = set()
        for answer in (answer for batch in self._batches() for answer in batch):
            # No stored rule score means that the scorer failed; then judges decide.
            rule = (
                (self.stored_rule_score(answer) or _SCORER_FAILED)
                if self.judge_queue.needs_rule_score(answer)
                else None
            )
            for judgement in self.judge_queue.about(answer, rule):
                if judgement.key not in seen:
                    seen.add(judgement.key)
                    yield judgement

    def _batches(self) -> Iterator[list[Answer]]:
        inputs = self._context.inputs
        return answers(inputs["rollouts"], inputs["questions"], with_text=True)


def work(context: StageContext) -> WorkResult:
    """Make the pending judgements of one stage instance. Do nothing if no judge is configured."""
    judging = Judging(context)
    if judging.judge_queue.is_empty:
        return WorkResult()
    # Fail on a wrong domain or a bad tokenizer before any request is paid for.
    check_domains(judging.judge_queue.judge, judging.rules())
    load_tokenizer(judging.settings.tokenizer, judging.settings.tokenizer_digest)
    judging.store_rule_scores()
    return steady_loop.run(judging.work())


_SCORER_FAILED = no_verdict("the scorer failed", "math_symbolic")


def _limits(options: ScoresOptions) -> SymbolicLimits | None:
    if not options.symbolic:
        return None
    return SymbolicLimits(limit_s=options.symbolic_limit_s, memory_mib=options.symbolic_memory_mib)


def _vote_fields(vote: Vote) -> dict[str, Any]:
    votes = {"votes_yes": vote.yes, "votes_no": vote.no, "votes_abstained": vote.abstained}
    return _said(vote, bool(vote.yes or vote.no), **votes)


def _said(reply: Verdict | Vote, is_parsed: bool, **facts: Any) -> dict[str, Any]:
    """Return the columns of a judgement that depend on the reply; those of the other kind of judgement are null."""
    return {
        "prediction": "",
        "correct": None,
        "grade": None,
        "parts": [],
        **dict.fromkeys(("votes_yes", "votes_no", "votes_abstained")),
        **facts,
        "status": PARSED if is_parsed else UNREADABLE,
        "replies": list(reply.raw),
        "error": reply.error,
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
    }


def _is_final(row: Mapping[str, Any]) -> bool:
    """Return whether a row of `judgements` is complete: some votes on a trajectory may be missing."""
    if row["kind"] != REDUNDANCY:
        return bool(row["replies"])
    return bool(len(row["replies"]) == row["votes_yes"] + row["votes_no"] + row["votes_abstained"])


_HEAD = ("judgement_key", "kind", "judge", "question_key", "rollout_key")


def _head(judgement: Judgement) -> dict[str, Any]:
    return {
        "judgement_key": judgement.key,
        "kind": judgement.kind,
        "judge": judgement.judge,
        "question_key": judgement.answer.row["question_key"],
        "rollout_key": judgement.answer.key,
    }
