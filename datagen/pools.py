"""The stage `pools`: questions become pools of diverse trajectories, by repairing wrong ones and condensing right ones.

Each question is one owner in the journal: every answer within it is remembered, and its pool is one record when it is
finished. Rows are written in the order of the questions, whatever the order of completion.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import orjson

from treadle.agent.crew import Crew, begin, settle
from treadle.agent.environment import QUESTION_COLUMNS
from treadle.agent.judges.answer import AnswerJudge
from treadle.agent.judges.base import Judge
from treadle.agent.memory import Counted, JournalMemory, Memory
from treadle.agent.metering import Meter, TokenBudget
from treadle.agent.opening import Opening, OpenModel, check_api, load_tokenizer
from treadle.agent.role import AskedModel
from treadle.agent.rollout import rare_collections
from treadle.agent.rollout_settings import selected_questions
from treadle.agent.rows import telemetry_of
from treadle.agent.toolbox import sandbox_facts
from treadle.agent.tools.outcome import Tool
from treadle.core import schemas
from treadle.core.errors import EndpointUnavailable
from treadle.core.llm.pool import ModelPool
from treadle.core.llm.types import ServerFacts
from treadle.core.stage import Stage, StageContext, Worked
from treadle.datagen.evolution import Evolution
from treadle.datagen.kit import Kit, Nobody
from treadle.datagen.operators import load_operators
from treadle.datagen.pool_exit import PoolExit
from treadle.datagen.pool_report import PoolReport
from treadle.datagen.pool_rows import event_rows, failed_question_row, pool_rows, question_row
from treadle.datagen.pools_settings import PoolsSettings
from treadle.datagen.prompts import PromptSet

_WRITE_BATCH = 64
"""Questions whose rows are handed to the writer at once."""
_COLUMNS = (*QUESTION_COLUMNS, "split", "answers")


@dataclass(frozen=True, slots=True)
class _Job:
    """One question."""

    key: str
    question: Mapping[str, Any]


class PoolsRun:
    """One attempt of the stage."""

    def __init__(self, context: StageContext) -> None:
        self._context = context
        self._settings: PoolsSettings = context.settings
        self._options = self._settings.options
        self._journal = context.journal
        self._tokenizer_digest = ""
        self._environment_digests = self._settings.environment.digests()
        self._budget = TokenBudget(
            self._options.max_total_tokens, self._options.max_cost, num_shards=context.num_shards
        )
        self._crew = Crew(self._options, self._open_jobs, self._make, noun="questions")
        self._prompts = PromptSet(self._options.prompts)
        self._prompts.check()
        self._operators = load_operators(self._options.operators)
        self._kit: Kit | None = None
        self._counted: dict[str, set[str]] = {}
        self._facts: Counter[str] = Counter()
        self._found: dict[str, Any] = {}
        """What `run` is to know beside the journal."""

    async def work(self) -> Worked:
        """Make what is open of the pools at hand."""
        num_open = begin(self._context, self._own_jobs(), "questions")
        if not num_open:
            return Worked()
        await self._finish_open(num_open)
        return self._crew.worked(self._found)

    async def _finish_open(self, num_open: int) -> None:
        settings = self._settings
        for name, role in settings.roles.items():
            check_api(name, role.name, role.model)
        try:
            async with Opening(self._budget) as opening:
                models: dict[str, OpenModel] = {}
                servers = self._found["servers"] = {}
                for name, role in settings.roles.items():
                    models[name] = await opening.model(role.name, role.model, role.tokenizer_digest)
                    servers[name] = asdict(models[name].facts)
                tools = await opening.tools(settings.environment, models.get("summarizer"), self._context.store)
                self._found["sandbox"] = sandbox_facts(settings.environment)
                models["policy"].check_ids()
                if self._budget.is_limited:
                    self._count_finished()
                async with self._judge(models) as judge:
                    self._kit = self._make_kit(models, tools, judge)
                    await self._crew.work(num_open)
        except EndpointUnavailable as error:
            if not self._context.accept_failures:
                raise
            self._crew.last.first = self._crew.last.first or str(error)

    def _make_kit(self, models: Mapping[str, OpenModel], tools: Mapping[str, Tool], judge: Judge) -> Kit:
        settings, policy = self._settings, models["policy"]
        sampling, environment = settings.roles["policy"].sampling, settings.environment
        self._tokenizer_digest = policy.codec.digest if policy.codec else ""
        return Kit(
            options=self._options,
            environment=environment,
            fresh=policy.engine(environment, sampling),
            continuing=policy.engine(environment, sampling, additional_calls=environment.continuation_calls),
            tools=tools,
            roles={name: models[name].in_role(name, settings.roles[name].sampling) for name in ("critic", "refiner")},
            judge=judge,
            operators=self._operators,
            prompts=self._prompts,
            policy_name=settings.roles["policy"].name,
            seed=settings.seed,
        )

    def _judge(self, models: Mapping[str, OpenModel], instead: AskedModel | None = None) -> AnswerJudge:
        """The judge in force; `instead` is asked in place of its model."""
        model = None
        if self._options.judge_math:
            model = models["judge"].in_role("judge", self._settings.roles["judge"].sampling)
            model = replace(model, model=instead or model.model)
        return AnswerJudge(f1_threshold=self._options.f1_threshold, model=model)

    async def _make(self, job: _Job) -> None:
        assert self._kit is not None
        stored = await self._evolve(job, self._kit)
        self._journal.finish(job.key, orjson.dumps(stored))
        self._counted.pop(job.key, None)
        self._facts["trajectories"] += stored["question"]["num_trajectories"]
        self._facts["right"] += stored["question"]["num_correct"]
        if (status := stored["question"]["status"]) != "ok":
            self._facts[status] += 1
        self._context.progress.advance(1, **self._facts)

    async def _evolve(self, job: _Job, kit: Kit) -> dict[str, Any]:
        """Play a question to its end; returns its rows."""
        memory: Memory = JournalMemory(self._journal, job.key)
        if self._budget.is_limited:
            memory = Counted(memory, self._count_unit, self._counted.setdefault(job.key, set()))
        evolution = Evolution(kit, job.question, memory)
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
            "events": event_rows(job.key, evolution.events),
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

    async def _from_memory(self, job: _Job) -> dict[str, Any]:
        """Rows of a question that stays unfinished: what its remembered parts make; the rest counts as failed."""
        worked = self._context.worked
        cause = worked.causes.get(job.key, worked.first)
        if self._kit is None:
            return {"pool": [], "events": [], "question": failed_question_row(job.question, cause), "telemetry": []}
        return await self._evolve(job, self._kit.without_models(cause))

    def _known_models(self, servers: Mapping[str, Any]) -> dict[str, OpenModel]:
        """Role -> the model with which the questions were worked at, for where nobody is asked any more.

        Of the policy it matters what its server said; of the others only answers count that are remembered.
        """
        models = {}
        for name, role in self._settings.roles.items():
            unknown = ServerFacts(role.model.model, None, token_ids=False, endpoints=())
            facts = ServerFacts(**servers[name]) if name in servers else unknown
            meter = Meter(ModelPool(role.name, role.model), self._budget)
            tokenizer = load_tokenizer(role.name, role.model, role.tokenizer_digest)
            models[name] = OpenModel(role.name, meter, facts, tokenizer)
        return models

    def _count_finished(self) -> None:
        """Charge the budget with what finished questions used."""
        for job in self._own_jobs():
            if self._journal.is_finished(job.key):
                for role, used in orjson.loads(self._stored(job.key)["question"]["usage"]).items():
                    model = self._settings.roles[role].model
                    self._budget.count(model, used["prompt_tokens"], used["completion_tokens"])

    def _count_unit(self, unit: str, prompt_tokens: int, completion_tokens: int) -> None:
        """Charge the budget with an answer that an earlier attempt left: to whichever of its models may be dearest."""
        if prompt_tokens or completion_tokens:
            roles = self._settings.roles
            models = [roles[name].model for name in _roles_behind(unit) if name in roles] or [roles["policy"].model]
            dearest = max(models, key=lambda model: model.cost(prompt_tokens, completion_tokens))
            self._budget.count(dearest, prompt_tokens, completion_tokens)

    async def write(self) -> dict[str, Any]:
        """Judge what was made, and write all rows."""
        _, num_owed = settle(self._context, self._options, self._jobs(), "questions")
        servers: Any = self._context.worked.facts.get("servers", {})
        if not num_owed or "policy" not in servers:
            return await self._write()
        models, nobody = self._known_models(servers), Nobody(self._context.worked.first)
        tools = dict.fromkeys(self._settings.environment.enabled_tools, nobody)
        # Rules need nobody, and verdicts of models are remembered: without them the wrong branch would be played.
        async with self._judge(models, nobody) as judge:
            self._kit = self._make_kit(models, tools, judge)
            return await self._write()

    async def _write(self) -> dict[str, Any]:
        report, exit_check = PoolReport([operator.name for operator in self._operators]), PoolExit()
        tables: dict[str, list[dict[str, Any]]] = {"pool": [], "events": [], "question": [], "telemetry": []}
        for number, job in enumerate(self._jobs(), 1):
            finished = self._journal.is_finished(job.key)
            stored = self._stored(job.key) if finished else await self._from_memory(job)
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
        self._context.add_file(schemas.POOLS.kind, "report.md", report.markdown().encode())
        return {**report.metrics(), **self._context.worked.facts.get("sandbox", {})}

    def _flush(self, tables: dict[str, list[dict[str, Any]]]) -> None:
        self._context.write(schemas.POOLS.kind, tables["pool"])
        self._context.write(schemas.POOL_EVENTS.kind, tables["events"])
        self._context.write(schemas.POOL_QUESTIONS.kind, tables["question"])
        self._context.write_telemetry(schemas.ROLLOUT_TELEMETRY.kind, tables["telemetry"])
        for rows in tables.values():
            rows.clear()

    def _stored(self, key: str) -> dict[str, Any]:
        stored: dict[str, Any] = orjson.loads(self._journal.finished(key))
        return stored

    def _own_jobs(self) -> Iterator[_Job]:
        return (job for job in self._jobs() if self._context.owns(job.key))

    def _open_jobs(self) -> Iterator[_Job]:
        return (job for job in self._own_jobs() if not self._journal.is_finished(job.key))

    def _jobs(self) -> Iterator[_Job]:
        """All questions that were asked for, in their order."""
        for question in selected_questions(self._options, self._context.inputs["questions"], _COLUMNS):
            yield _Job(question["question_key"], question)


_ROLES = {"llm": ("policy",), "tool": ("summarizer",), "ask": ("critic", "refiner")}


def _roles_behind(unit: str) -> tuple[str, ...]:
    """Roles that may have given the answer which a question's memory holds under this unit."""
    if unit.startswith("verdict-"):
        return ("judge",)
    return _ROLES.get(unit.rpartition("/")[2].partition("-")[0], ())


def work(context: StageContext) -> Worked:
    """Make the pools of one stage instance that are open."""
    with rare_collections():
        return asyncio.run(PoolsRun(context).work())


def run(context: StageContext) -> Mapping[str, Any]:
    """Write the pools of one stage instance; returns counts by outcome, operator, reason and role."""
    with rare_collections():
        return asyncio.run(PoolsRun(context).write())


POOLS_STAGE = Stage(
    name="pools",
    version=1,
    settings=PoolsSettings,
    consumes={"questions": "questions", "checkpoint": "checkpoint"},
    optional=frozenset({"checkpoint"}),
    produces=(schemas.POOLS, schemas.POOL_QUESTIONS, schemas.POOL_EVENTS),
    telemetry=(schemas.ROLLOUT_TELEMETRY,),
    run=run,
    work=work,
    num_shards=lambda settings: settings.options.shards,
)
