"""The stage `pools`: questions become pools of diverse trajectories, by repairing wrong ones and condensing right ones.

Each question is one owner in the journal: every answer within it is remembered, and its pool is one record when it is
finished. Rows are written in the order of the questions, whatever the order of completion.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from treadle.agent.crew import Crew
from treadle.agent.judges.answer import AnswerJudge
from treadle.agent.memory import Counted, JournalMemory
from treadle.agent.metering import TokenBudget
from treadle.agent.opening import Opening, OpenModel, load_tokenizer
from treadle.agent.rollout import Memory, rare_collections
from treadle.agent.rollout_settings import selected_questions
from treadle.agent.rows import telemetry_of
from treadle.agent.toolbox import sandbox_facts
from treadle.core import schemas
from treadle.core.errors import EndpointUnavailable, StageFailed
from treadle.core.stage import Stage, StageContext
from treadle.datagen.evolution import Evolution, Kit
from treadle.datagen.operators import load_operators
from treadle.datagen.pool_report import PoolReport
from treadle.datagen.pool_rows import event_rows, failed_question_row, pool_rows, question_row
from treadle.datagen.pools_settings import PoolsSettings
from treadle.datagen.prompts import PromptSet

_WRITE_BATCH = 64
"""Questions whose rows are handed to the writer at once."""
_COLUMNS = ("question_key", "dataset", "domain", "question", "choices", "split", "answers")


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
        policy = self._settings.roles["policy"]
        tokenizer = load_tokenizer(policy.name, policy.model, policy.tokenizer_digest)
        self._tokenizer_digest = tokenizer.digest if tokenizer else ""
        self._environment_digest = self._settings.environment.digest()
        self._budget = TokenBudget(self._options.max_total_tokens, self._options.max_cost)
        self._crew = Crew(self._options, self._open_jobs, self._make, noun="questions")
        self._prompts = PromptSet(self._options.prompts)
        self._prompts.check()
        self._operators = load_operators(self._options.operators)
        self._kit: Kit | None = None
        self._counted: dict[str, set[str]] = {}
        self._num_jobs = 0
        self._num_finished = 0
        self._facts: Counter[str] = Counter()
        self._sandbox_facts: dict[str, str] = {}

    async def run(self) -> dict[str, Any]:
        """Make what is open, then write all rows."""
        for job in self._jobs():
            self._num_jobs += 1
            self._num_finished += self._journal.is_finished(job.key)
        if not self._num_jobs:
            raise StageFailed(
                f"{self._context.address}: none of the questions is selected; check datasets, split and max_questions"
            )
        self._context.progress.start(self._num_jobs, self._num_finished, "questions")
        if self._num_finished < self._num_jobs:
            await self._finish_open()
        self._crew.settle(
            str(self._context.address),
            self._num_jobs,
            self._num_jobs - self._num_finished,
            accept_failures=self._context.accept_failures,
        )
        return await self._write()

    async def _finish_open(self) -> None:
        settings, options = self._settings, self._options
        try:
            async with Opening(self._budget) as opening:
                models = {
                    name: await opening.model(role.name, role.model, role.tokenizer_digest)
                    for name, role in settings.roles.items()
                }
                tools = await opening.tools(settings.environment, models.get("summarizer"))
                self._sandbox_facts = sandbox_facts(settings.environment)
                policy = models["policy"]
                policy.check_ids()
                if policy.codec is None:
                    self._tokenizer_digest = ""
                if self._budget.is_limited:
                    self._count_finished()
                async with self._judge(models) as judge:
                    sampling = settings.roles["policy"].sampling
                    self._kit = Kit(
                        options=options,
                        environment=settings.environment,
                        fresh=policy.engine(settings.environment, sampling),
                        continuing=policy.engine(
                            settings.environment, sampling, additional_calls=settings.environment.continuation_calls
                        ),
                        tools=tools,
                        roles={
                            name: models[name].in_role(name, settings.roles[name].sampling)
                            for name in ("critic", "refiner")
                        },
                        judge=judge,
                        operators=self._operators,
                        prompts=self._prompts,
                        policy_name=settings.roles["policy"].name,
                        seed=settings.seed,
                    )
                    await self._crew.work(self._num_jobs - self._num_finished)
        except EndpointUnavailable as error:
            if not self._context.accept_failures:
                raise
            self._crew.last.first = self._crew.last.first or str(error)

    def _judge(self, models: Mapping[str, OpenModel]) -> AnswerJudge:
        role = self._settings.roles["judge"]
        model = models["judge"].in_role("judge", role.sampling) if self._options.judge_math else None
        return AnswerJudge(f1_threshold=self._options.f1_threshold, model=model)

    async def _make(self, job: _Job) -> None:
        assert self._kit is not None
        stored = await self._evolve(job, self._kit)
        self._journal.finish(job.key, orjson.dumps(stored))
        self._counted.pop(job.key, None)
        self._num_finished += 1
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
            "pool": pool_rows(job.question, evolution.pool, models, self._environment_digest, self._tokenizer_digest),
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
        cause = self._crew.last.errors.get(job.key, self._crew.last.first)
        if self._kit is not None:
            return await self._evolve(job, self._kit.without_models(cause))
        return {"pool": [], "events": [], "question": failed_question_row(job.question, cause), "telemetry": []}

    def _count_finished(self) -> None:
        """Charge the budget with what finished questions used."""
        for job in self._jobs():
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

    async def _write(self) -> dict[str, Any]:
        report = PoolReport()
        tables: dict[str, list[dict[str, Any]]] = {"pool": [], "events": [], "question": [], "telemetry": []}
        for number, job in enumerate(self._jobs(), 1):
            finished = self._journal.is_finished(job.key)
            stored = self._stored(job.key) if finished else await self._from_memory(job)
            report.add(stored["question"], stored["pool"], stored["events"])
            tables["question"].append(stored["question"])
            for name in ("pool", "events", "telemetry"):
                tables[name] += stored[name]
            if number % _WRITE_BATCH == 0:
                self._flush(tables)
        self._flush(tables)
        self._context.add_file(schemas.POOLS.kind, "report.md", report.markdown().encode())
        return {**report.metrics(), **self._sandbox_facts}

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

    def _open_jobs(self) -> Iterator[_Job]:
        return (job for job in self._jobs() if not self._journal.is_finished(job.key))

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


def run(context: StageContext) -> Mapping[str, Any]:
    """Make the pools of one stage instance; returns counts by outcome, operator, reason and role."""
    with rare_collections():
        return asyncio.run(PoolsRun(context).run())


POOLS_STAGE = Stage(
    name="pools",
    version=1,
    settings=PoolsSettings,
    consumes={"questions": "questions"},
    produces=(schemas.POOLS, schemas.POOL_QUESTIONS, schemas.POOL_EVENTS),
    telemetry=(schemas.ROLLOUT_TELEMETRY,),
    run=run,
)
