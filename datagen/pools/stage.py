"""Run the stage `pools`: make pools of diverse trajectories by repairing wrong ones and condensing right ones.

Each question is one owner in the journal: every answer within it is stored, and a finished pool is one record. Rows are
written in the order of the questions, regardless of the order of completion.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

import orjson

from treadle.agent.call_cache import CallCache, CountingCache, JournalCache
from treadle.agent.jobs.keys import QuestionJob, job_key, shared_digest
from treadle.agent.jobs.stage import JobStage
from treadle.agent.judges.answer import AnswerJudge
from treadle.agent.judges.cases import Verifier
from treadle.agent.metering import Meter
from treadle.agent.model_sessions import ModelSession, ModelSessions, check_api, load_tokenizer
from treadle.agent.role import RoleBackend
from treadle.agent.rollout import rare_collections
from treadle.core import steady_loop
from treadle.core.errors import StageFailed
from treadle.core.llm.pool import ModelPool
from treadle.core.llm.types import ServerFacts
from treadle.core.runs.stage import EarlierResult, Rows, Stage, StageContext, StageJobs, WorkResult
from treadle.datagen.operators import load_operators
from treadle.datagen.pools.context import NullModel, NullRuntime, PoolContext
from treadle.datagen.pools.evolution import Evolution
from treadle.datagen.pools.exit_check import PoolExitCheck
from treadle.datagen.pools.report import PoolReport, pool_warnings
from treadle.datagen.pools.rows import event_rows, failed_question_row, pool_rows, question_row
from treadle.datagen.pools.settings import PoolsSettings
from treadle.datagen.pools.tables import POOL_EVENTS, POOL_QUESTIONS, POOLS
from treadle.datagen.prompts import PromptSet
from treadle.environments.opening import engine_of, open_runtime
from treadle.environments.registry import environment_type
from treadle.environments.rollouts.rows import telemetry_of
from treadle.environments.rollouts.settings import JOB_COLUMNS, selected_questions
from treadle.environments.rollouts.tables import ROLLOUT_TELEMETRY
from treadle.environments.scorers.registry import compares_answers
from treadle.environments.settings import ENVIRONMENT_VERSION
from treadle.environments.types import EnvironmentRuntime, Resources

_log = logging.getLogger(__name__)

CONTENT_VERSION = 1
"""Version in the key of each job; increment it if pools are put together in another way, and neither the environment
nor an operator has changed. Earlier pools are then made again."""
_WRITE_BATCH = 64
"""Number of questions whose rows are written at once."""
_COLUMNS = (*JOB_COLUMNS, "answers")


class PoolsRun(JobStage[QuestionJob]):
    """State of one attempt of the stage."""

    NOUN = "questions"

    def __init__(self, context: StageContext) -> None:
        self._settings: PoolsSettings = context.settings
        self._options = self._settings.options
        super().__init__(context, self._options)
        self._tokenizer_digest = ""
        self._environment_digests = self._settings.environment.digests()
        self._prompts = PromptSet(self._options.prompts)
        self._prompts.check()
        self._operators = load_operators(self._options.operators)
        self._pool_context: PoolContext | None = None
        self._counted: dict[str, set[str]] = {}
        self._counts: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def _opened(self, sessions: ModelSessions) -> AsyncIterator[None]:
        """Open the models of all roles, the tools and the judge."""
        settings = self._settings
        for name, role in settings.roles.items():
            check_api(name, role.name, role.model)
        models: dict[str, ModelSession] = {}
        servers = self._facts["servers"] = {}
        for name, role in settings.roles.items():
            models[name] = await sessions.model(role.name, role.model, role.tokenizer_digest)
            servers[name] = asdict(models[name].facts)
        self._facts["sandbox"] = environment_type(settings.environment).facts(settings.environment)
        models["policy"].check_token_ids()
        resources = Resources(models.get("summarizer"), self._context.store)
        async with open_runtime(settings.environment, resources) as runtime, self._judge(models) as judge:
            self._pool_context = self._make_pool_context(models, runtime, judge)
            yield

    def _make_pool_context(
        self, models: Mapping[str, ModelSession], runtime: EnvironmentRuntime, judge: Verifier
    ) -> PoolContext:
        settings, policy = self._settings, models["policy"]
        sampling, environment = settings.roles["policy"].sampling, settings.environment
        self._tokenizer_digest = policy.codec.digest if policy.codec else ""
        return PoolContext(
            options=self._options,
            environment=environment,
            fresh=engine_of(policy, environment, sampling),
            continuing=engine_of(policy, environment, sampling, additional_calls=environment.num_continuation_calls),
            runtime=runtime,
            roles={name: models[name].for_role(name, settings.roles[name].sampling) for name in ("critic", "refiner")},
            judge=judge,
            operators=self._operators,
            prompts=self._prompts,
            policy_name=settings.roles["policy"].name,
            seed=settings.seed,
        )

    def _judge(self, models: Mapping[str, ModelSession], instead: RoleBackend | None = None) -> AnswerJudge:
        """Return the judge; `instead` replaces its model."""
        model = None
        if self._options.judge_math:
            model = models["judge"].for_role("judge", self._settings.roles["judge"].sampling)
            model = replace(model, model=instead or model.model)
        return AnswerJudge(f1_threshold=self._options.f1_threshold, model=model)

    async def _run_job(self, job: QuestionJob) -> None:
        assert self._pool_context is not None
        stored = await self._evolve(job, self._pool_context)
        self._journal.finish(job.key, orjson.dumps(stored))
        self._counted.pop(job.key, None)
        self._counts["trajectories"] += stored["question"]["num_trajectories"]
        self._counts["right"] += stored["question"]["num_correct"]
        if (status := stored["question"]["status"]) != "ok":
            self._counts[status] += 1
        self._context.progress.advance(1, **self._counts)

    async def _evolve(self, job: QuestionJob, pool_context: PoolContext) -> dict[str, Any]:
        """Make a question's pool and return its rows."""
        cache: CallCache = JournalCache(self._journal, job.key)
        if self._budget.is_limited:
            cache = CountingCache(cache, self._count_unit, self._counted.setdefault(job.key, set()))
        evolution = Evolution(pool_context, job.question, cache)
        await evolution.run()
        models = {name: role.name for name, role in self._settings.roles.items()}
        return {
            "pool": pool_rows(
                job.question,
                evolution.pool,
                models,
                self._environment_digests.of(job.question),
                self._tokenizer_digest,
            ),
            "events": event_rows(job.question["question_key"], evolution.events),
            "question": question_row(job.question, evolution),
            "telemetry": [
                telemetry_of(
                    entry.key,
                    self._context.attempt,
                    entry.trajectory.usage.model_seconds + entry.trajectory.usage.tool_seconds,
                    entry.trajectory,
                )
                for entry in evolution.pool
            ],
        }

    async def _replay_unfinished(self, job: QuestionJob) -> dict[str, Any]:
        """Return the rows of a question that stays unfinished, by replaying its stored answers.

        A request without a stored answer counts as failed.
        """
        worked = self._context.work_result
        cause = worked.causes.get(job.key, worked.first)
        if self._pool_context is None:
            return {"pool": [], "events": [], "question": failed_question_row(job.question, cause), "telemetry": []}
        return await self._evolve(job, self._pool_context.for_replay(cause))

    def _replay_models(self, servers: Mapping[str, Any]) -> dict[str, ModelSession]:
        """Return the models of all roles for replaying stored answers without requests.

        The policy gets the facts that its server reported when the questions were processed; the facts of other roles
        do not matter.
        """
        models = {}
        for name, role in self._settings.roles.items():
            unknown = ServerFacts(role.model.model, None, token_ids=False, endpoints=())
            facts = ServerFacts(**servers[name]) if name in servers else unknown
            meter = Meter(ModelPool(role.name, role.model), self._budget)
            tokenizer = load_tokenizer(role.name, role.model, role.tokenizer_digest)
            models[name] = ModelSession(role.name, meter, facts, tokenizer)
        return models

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

    async def write(self) -> dict[str, Any]:
        """Replay and judge unfinished questions, and write all rows."""
        num_pending = self.check_pending()
        servers: Any = self._context.work_result.facts.get("servers", {})
        environment = self._settings.environment
        replaying = environment_type(environment).replaying(environment)
        if not num_pending or "policy" not in servers or replaying is None:
            return await self._write()
        cause = self._context.work_result.first
        models, null_model = self._replay_models(servers), NullModel(cause)
        # Rules need no model, and verdicts of models are stored; without the judge, the wrong branch would be replayed.
        async with self._judge(models, null_model) as judge:
            self._pool_context = self._make_pool_context(models, NullRuntime(replaying, cause), judge)
            return await self._write()

    async def _write(self) -> dict[str, Any]:
        report, exit_check = PoolReport([operator.name for operator in self._operators]), PoolExitCheck()
        tables: dict[str, list[dict[str, Any]]] = {"pool": [], "events": [], "question": [], "telemetry": []}
        for number, job in enumerate(self._jobs(), 1):
            finished = self._journal.is_finished(job.key)
            stored = self._finished_rows(job) if finished else await self._replay_unfinished(job)
            stored["question"]["job"] = job.key if finished else None
            report.add(stored["question"], stored["pool"], stored["events"])
            exit_check.add(stored["question"], stored["pool"])
            tables["question"].append(stored["question"])
            for name in ("pool", "events", "telemetry"):
                tables[name] += stored[name]
            if number % _WRITE_BATCH == 0:
                self._flush(tables)
        self._flush(tables)
        if not self._context.accept_failures:
            exit_check.check(self._context.address)
        self._context.add_file(POOLS.kind, "report.md", report.markdown().encode())
        metrics = report.metrics()
        for sentence in pool_warnings(metrics):
            _log.warning("%s: %s", self._context.address, sentence)
        return {**metrics, **self._context.work_result.facts.get("sandbox", {})}

    def _finished_rows(self, job: QuestionJob) -> dict[str, Any]:
        """Return the rows of a finished question, which may have been in another data set when it was finished."""
        stored = self._stored(job.key)
        for row in (stored["question"], *stored["pool"]):
            row["dataset"] = job.question["dataset"]
        return stored

    def _flush(self, tables: dict[str, list[dict[str, Any]]]) -> None:
        self._context.write(POOLS.kind, tables["pool"])
        self._context.write(POOL_EVENTS.kind, tables["events"])
        self._context.write(POOL_QUESTIONS.kind, tables["question"])
        self._context.write_telemetry(ROLLOUT_TELEMETRY.kind, tables["telemetry"])
        for rows in tables.values():
            rows.clear()

    def _jobs(self) -> Iterator[QuestionJob]:
        return pool_jobs(self._settings, self._context.inputs)


_ROLES = {"llm": ("policy",), "tool": ("summarizer",), "ask": ("critic", "refiner")}


def _roles_of_unit(unit: str) -> tuple[str, ...]:
    """Return the roles that may have given the answer stored under this unit."""
    if unit.startswith("verdict-"):
        return ("judge",)
    return _ROLES.get(unit.rpartition("/")[2].partition("-")[0], ())


def pool_jobs(settings: PoolsSettings, inputs: Mapping[str, Sequence[Rows]]) -> Iterator[QuestionJob]:
    """Yield a job for each selected question, in order.

    A job's key includes the gold answers, because the processing of a trajectory depends on whether it is right.
    """
    shared, environment = shared_digest(settings, inputs), settings.environment.digests()
    for question in selected_questions(settings.options, inputs["questions"], _COLUMNS):
        if question["scorer"] is not None and not compares_answers(question["scorer"]):
            raise StageFailed(
                f"pools judges answers, but the scorer {question['scorer']} decides about the tasks of "
                f"{question['dataset']}; leave it out of pools.datasets, or make rows from rollouts: "
                "sft_rows.trajectories = 'rollouts'"
            )
        asked = [question[name] for name in _DEPENDS_ON]
        yield QuestionJob(job_key(shared, CONTENT_VERSION, environment.of(question), *asked), question)


_DEPENDS_ON = ("question_key", "question", "choices", "answers", "domain", "scorer", "format", "search")
"""Columns of a question that its pool depends on."""


def _owners(result: EarlierResult) -> Iterator[str]:
    return (row["job"] for row in result.rows(POOL_QUESTIONS.kind, ("job",)) if row["job"] is not None)


def _records(result: EarlierResult) -> Iterator[tuple[str, bytes]]:
    """Yield the journal records from which a result's rows were made.

    All tables of a result are in the order of its questions.
    """
    pools = groupby(result.rows(POOLS.kind), itemgetter("question_key"))
    events = groupby(result.rows(POOL_EVENTS.kind), itemgetter("question_key"))
    measured = result.telemetry(ROLLOUT_TELEMETRY.kind)
    of_pools, of_events, next_measured = next(pools, None), next(events, None), next(measured, None)
    for question in result.rows(POOL_QUESTIONS.kind):
        key, parts = question.pop("job"), {"pool": list[Any](), "events": list[Any](), "telemetry": list[Any]()}
        if of_pools is not None and of_pools[0] == question["question_key"]:
            parts["pool"] = list(of_pools[1])
            of_pools = next(pools, None)
        if of_events is not None and of_events[0] == question["question_key"]:
            parts["events"] = list(of_events[1])
            of_events = next(events, None)
        for row in parts["pool"]:
            if next_measured is not None and next_measured["rollout_key"] == row["rollout_key"]:
                parts["telemetry"].append(next_measured)
                next_measured = next(measured, None)
        if key is not None:
            yield key, orjson.dumps({**parts, "question": question})


def work(context: StageContext) -> WorkResult:
    """Make the unfinished pools of one stage instance."""
    with rare_collections():
        return steady_loop.run(PoolsRun(context).work())


def run(context: StageContext) -> Mapping[str, Any]:
    """Write the pools of one stage instance; return counts by outcome, operator, reason and role."""
    with rare_collections():
        return steady_loop.run(PoolsRun(context).write())


POOLS_STAGE = Stage(
    name="pools",
    version=ENVIRONMENT_VERSION + CONTENT_VERSION,
    settings=PoolsSettings,
    consumes={"questions": "questions", "checkpoint": "checkpoint"},
    optional=frozenset({"checkpoint"}),
    produces=(POOLS, POOL_QUESTIONS, POOL_EVENTS),
    telemetry=(ROLLOUT_TELEMETRY,),
    run=run,
    work=work,
    journal_format=2,
    jobs=StageJobs(noun="questions", of=pool_jobs, owners=_owners, records=_records),
    num_shards=lambda settings: settings.options.shards,
)
