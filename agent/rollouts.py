"""The stage `rollouts`: K trajectories per question, nothing scored, nothing lost.

A fixed number of workers pull rollouts from a stream of questions, so memory does not grow with the work. The journal
remembers each answer, outcome and finished row; what infrastructure kept from finishing is tried again in further
passes, then owed to a resumed run. Rows are written in the order of the questions, whatever the order of completion.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from treadle.agent.crew import Crew, begin, refuse_silence, settle
from treadle.agent.environment import CallRecord, Question, ToolEnvironment
from treadle.agent.memory import JournalMemory, Memory, remembered_answers, remembered_calls
from treadle.agent.metering import TokenBudget
from treadle.agent.opening import Opening, check_api, load_tokenizer
from treadle.agent.rollout import RolloutEngine, Trajectory, rare_collections
from treadle.agent.rollout_settings import RolloutOptions, RolloutsSettings, selected_questions
from treadle.agent.rows import failed_row, head_of_row, rollout_key, row_of, telemetry_of
from treadle.agent.toolbox import sandbox_facts
from treadle.agent.tools.outcome import Tool
from treadle.core.errors import (
    EndpointUnavailable,
    StageFailed,
)
from treadle.core.llm.types import Completion
from treadle.core.schemas import ROLLOUT_TELEMETRY
from treadle.core.schemas import ROLLOUTS as ROLLOUTS_TABLE
from treadle.core.stage import Stage, StageContext, Worked

__all__ = ["ROLLOUTS", "RolloutOptions", "RolloutsSettings"]

_log = logging.getLogger(__name__)

_WRITE_BATCH = 256
"""Rows handed to the writer at once."""


@dataclass(frozen=True, slots=True)
class _Job:
    """One rollout that was asked for."""

    key: str
    question: Mapping[str, Any]
    sample_index: int


class RolloutsRun:
    """One attempt of the stage."""

    def __init__(self, context: StageContext) -> None:
        self._context = context
        self._settings: RolloutsSettings = context.settings
        self._options = self._settings.options
        self._journal = context.journal
        self._budget = TokenBudget(
            self._options.max_total_tokens, self._options.max_cost, num_shards=context.num_shards
        )
        self._tokenizer_digest = ""
        self._environment_digests = self._settings.environment.digests()
        self._statuses: Counter[str] = Counter()
        self._tokens = 0
        self._started = 0.0
        self._crew = Crew(self._options, self._open_jobs, self._make, noun="rollouts")
        self._engine: RolloutEngine | None = None
        self._tools: dict[str, Tool] = {}
        self._sandbox_facts: dict[str, str] = {}

    async def work(self) -> Worked:
        """Make what is open of the rollouts at hand."""
        num_open = begin(self._context, self._own_jobs(), "rollouts")
        if not num_open:
            return Worked()
        await self._finish_open(num_open)
        return self._crew.worked({"sandbox": self._sandbox_facts, "tokenizer_digest": self._tokenizer_digest})

    async def _finish_open(self, num_open: int) -> None:
        settings = self._settings
        check_api(self._options.role, settings.model_name, settings.model)
        tokenizer = load_tokenizer(settings.model_name, settings.model, settings.tokenizer_digest)
        self._tokenizer_digest = tokenizer.digest if tokenizer else ""
        self._started = asyncio.get_running_loop().time()
        try:
            async with Opening(self._budget) as opening:
                policy = await opening.model(settings.model_name, settings.model, settings.tokenizer_digest)
                summarizer = None
                if settings.environment.summarizer is not None and settings.summarizer is not None:
                    summarizer = await opening.model(
                        settings.environment.summarizer, settings.summarizer, settings.summarizer_tokenizer_digest
                    )
                self._tools = await opening.tools(settings.environment, summarizer, self._context.store)
                self._sandbox_facts = sandbox_facts(settings.environment)
                policy.check_ids()
                if policy.codec is None:
                    self._tokenizer_digest = ""
                if self._budget.is_limited:
                    self._count_earlier()
                self._engine = policy.engine(settings.environment, self._options.sampling, role=self._options.role)
                await self._crew.work(num_open)
        except EndpointUnavailable as error:
            if not self._context.accept_failures:
                raise
            self._crew.last.first = self._crew.last.first or str(error)

    def _count_earlier(self) -> None:
        """Charge the budget with what earlier attempts used, what belongs to rollouts that were cut off included."""
        for job in self._own_jobs():
            own, of_summarizer = self._used(job.key)
            self._budget.count(self._settings.model, *own)
            if self._settings.summarizer is not None:
                self._budget.count(self._settings.summarizer, *of_summarizer)

    def _used(self, key: str) -> tuple[tuple[int, int], tuple[int, int]]:
        """Prompt and sampled tokens of a rollout so far: its policy's, its summarizer's."""
        if self._journal.is_finished(key):
            stored = self._stored(key)
            counts = {**stored["telemetry"], **stored["row"]}
            own, helper = ([int(counts[name]) for name in names] for names in (_TOKENS, _SUMMARY))
            return (own[0], own[1]), (helper[0], helper[1])
        memory = JournalMemory(self._journal, key)
        answers = list(remembered_answers(memory))
        return _tokens(answers), _tokens(remembered_calls(memory, len(answers)))

    def _own_jobs(self) -> Iterator[_Job]:
        return (job for job in self._jobs() if self._context.owns(job.key))

    def _open_jobs(self) -> Iterator[_Job]:
        return (job for job in self._own_jobs() if not self._journal.is_finished(job.key))

    async def _make(self, job: _Job) -> None:
        assert self._engine is not None
        loop = asyncio.get_running_loop()
        started = loop.time()
        head = self._head(job)
        memory: Memory = JournalMemory(self._journal, job.key)
        environment = ToolEnvironment(self._settings.environment, self._tools)
        trajectory = await self._engine.roll_out(
            environment,
            Question.from_row(job.question),
            seed=head["seed"],
            deadline=started + self._settings.environment.rollout_time_s,
            memory=memory,
        )
        row = row_of(head, trajectory, self._environment_digests.of(job.question), self._tokenizer_digest)
        self._finish(row, trajectory, loop.time() - started)

    def _finish(self, row: Mapping[str, Any], trajectory: Trajectory, seconds: float) -> None:
        key = row["rollout_key"]
        telemetry = telemetry_of(key, self._context.attempt, seconds, trajectory)
        value = {"row": row, "telemetry": telemetry, "wasted_tokens": trajectory.usage.wasted_tokens}
        self._journal.finish(key, orjson.dumps(value))
        self._statuses[trajectory.status] += 1
        self._tokens += trajectory.usage.completion_tokens
        rate = self._tokens / max(asyncio.get_running_loop().time() - self._started, 1e-3)
        self._context.progress.advance(1, tokens_per_s=round(rate), **self._statuses)

    def write(self) -> dict[str, Any]:
        """Judge what was made, and write all rows."""
        num_jobs, _ = settle(self._context, self._options, self._jobs(), "rollouts")
        return self._write(num_jobs)

    def _write(self, num_jobs: int) -> dict[str, Any]:
        worked = self._context.worked
        tokenizer_digest = worked.facts.get("tokenizer_digest", "")
        totals: Counter[str] = Counter()
        statuses: Counter[str] = Counter()
        rows: list[dict[str, Any]] = []
        telemetry: list[dict[str, Any]] = []
        for job in self._jobs():
            if self._journal.is_finished(job.key):
                stored = self._stored(job.key)
                row = stored["row"]
                telemetry.append(stored["telemetry"])
                totals["wasted_tokens"] += stored["wasted_tokens"]
                for name in _SUMMARY:
                    totals[name] += stored["telemetry"][name]
            else:
                error = worked.causes.get(job.key, worked.first)
                digest = self._environment_digests.of(job.question)
                row = failed_row(self._head(job), error, digest, tokenizer_digest)
            rows.append(row)
            statuses[row["status"]] += 1
            totals["said"] += bool(row["text"])
            for name in _SUMMED:
                totals[name] += row[name]
            if len(rows) == _WRITE_BATCH:
                self._flush(rows, telemetry)
        self._flush(rows, telemetry)
        if statuses["context_full"] == num_jobs and not totals["calls_requested"]:
            self._refuse_window()
        if not totals["said"] and not self._context.accept_failures:
            refuse_silence(self._context.address, statuses, "rollouts")
        return {
            "num_rollouts": num_jobs,
            **{f"status_{name}": count for name, count in sorted(statuses.items())},
            **{name: totals[name] for name in (*_SUMMED, "wasted_tokens")},
            **{name: totals[name] for name in _SUMMARY if self._settings.environment.summarizer},
            **worked.facts.get("sandbox", {}),
        }

    def _refuse_window(self) -> None:
        """Raise where not one rollout got as far as a call: the window is too small, not the agent too long-winded."""
        if self._context.accept_failures:
            return
        name, window = self._settings.model_name, self._settings.model.max_model_len
        remedy = f"serve it with a larger one, then: treadle stage {self._context.address} --force"
        if window is not None:
            remedy = f"raise models.{name}.max_model_len = {window} in a new run"
        raise StageFailed(f"{self._context.address}: no rollout fits the window of model {name}; {remedy}")

    def _flush(self, rows: list[dict[str, Any]], telemetry: list[dict[str, Any]]) -> None:
        self._context.write(ROLLOUTS_TABLE.kind, rows)
        self._context.write_telemetry(ROLLOUT_TELEMETRY.kind, telemetry)
        rows.clear()
        telemetry.clear()

    def _stored(self, key: str) -> dict[str, Any]:
        stored: dict[str, Any] = orjson.loads(self._journal.finished(key))
        return stored

    def _jobs(self) -> Iterator[_Job]:
        """All rollouts that were asked for, in the order of their rows."""
        name = self._settings.model_name
        for question in selected_questions(self._options, self._context.inputs["questions"]):
            for sample_index in range(self._options.samples_per_question):
                key = rollout_key(question["question_key"], name, sample_index)
                yield _Job(key, question, sample_index)

    def _head(self, job: _Job) -> dict[str, Any]:
        return head_of_row(job.question, self._settings.model_name, job.sample_index, self._settings.seed)


_TOKENS = ("prompt_tokens", "completion_tokens")
_SUMMARY = ("summarizer_prompt_tokens", "summarizer_completion_tokens")
_SUMMED = ("num_turns", "calls_requested", "calls_executed", "failed_calls", *_TOKENS)


def _tokens(answers: Iterable[Completion | CallRecord]) -> tuple[int, int]:
    """Prompt and sampled tokens."""
    found = [(answer.prompt_tokens, answer.completion_tokens) for answer in answers]
    return sum(prompt for prompt, _ in found), sum(completion for _, completion in found)


def work(context: StageContext) -> Worked:
    """Make the rollouts of one stage instance that are open."""
    with rare_collections():
        return asyncio.run(RolloutsRun(context).work())


def run(context: StageContext) -> Mapping[str, Any]:
    """Write the rollouts of one stage instance; returns counts of statuses, turns, calls and tokens."""
    with rare_collections():
        return RolloutsRun(context).write()


ROLLOUTS = Stage(
    name="rollouts",
    version=1,
    settings=RolloutsSettings,
    consumes={"questions": "questions", "checkpoint": "checkpoint"},
    optional=frozenset({"checkpoint"}),
    produces=(ROLLOUTS_TABLE,),
    telemetry=(ROLLOUT_TELEMETRY,),
    run=run,
    work=work,
    num_shards=lambda settings: settings.options.shards,
)
