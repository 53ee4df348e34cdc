"""Run the stage `rollouts`: sample K trajectories per question, without scoring them.

A fixed number of workers pull rollouts from a stream of questions, so RAM use does not grow with the work. The journal
caches each model answer, tool outcome and finished row. Rollouts that fail because of infrastructure are retried in
further passes, then left pending for a resumed run. Rows are written in the order of the questions, not in the order of
completion.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import orjson

from treadle.agent.cached_units import asked_role
from treadle.agent.call_cache import CallCache, JournalCache
from treadle.agent.contract import CallRecord, EpisodeOptions, Task
from treadle.agent.dialects.functions import FunctionsDialect
from treadle.agent.jobs.keys import QuestionJob, job_key, shared_digest, unique_jobs
from treadle.agent.jobs.runner import raise_no_output
from treadle.agent.jobs.stage import JobStage
from treadle.agent.model_sessions import ModelSessions, check_api, load_tokenizer
from treadle.agent.rollout import RolloutEngine, rare_collections
from treadle.agent.trajectory import STATUSES, Trajectory
from treadle.core import steady_loop
from treadle.core.answers.extraction import SYSTEM_KINDS
from treadle.core.chat import ChatTokenizer
from treadle.core.errors import StageFailed
from treadle.core.llm.types import Completion
from treadle.core.runs.stage import EarlierResult, Rows, Stage, StageContext, StageJobs, WorkResult
from treadle.core.work_clock import timed_work
from treadle.environments.opening import engine_of, open_runtime
from treadle.environments.registry import environment_type, traits_of
from treadle.environments.rollouts.report import ODD, unreadable_output_warnings
from treadle.environments.rollouts.restarts import cached_usage, roll_out_again
from treadle.environments.rollouts.rows import (
    FAILED,
    failed_row,
    group_seed,
    head_of_row,
    question_content_key,
    rollout_seed,
    row_of,
    telemetry_of,
)
from treadle.environments.rollouts.settings import RolloutsSettings, job_columns, selected_questions
from treadle.environments.rollouts.tables import ROLLOUT_TELEMETRY, ROLLOUTS
from treadle.environments.rollouts.tool_counts import ToolTotals
from treadle.environments.settings import ENVIRONMENT_VERSION
from treadle.environments.types import EnvironmentRuntime, Resources

_log = logging.getLogger(__name__)

_WRITE_BATCH = 256
"""Rows passed to the writer at once."""


@dataclass(frozen=True, slots=True)
class RolloutJob(QuestionJob):
    """Job of one rollout; `content_key` is that of its question, from which its seeds derive."""

    content_key: str = ""


class RolloutsRun(JobStage[RolloutJob]):
    """One attempt of the stage."""

    NOUN = "rollouts"

    def __init__(self, context: StageContext) -> None:
        self._settings: RolloutsSettings = context.settings
        self._options = self._settings.options
        super().__init__(context, self._options)
        self._environment_digests = self._settings.environment.digests()
        self._statuses: Counter[str] = Counter()
        self._tokens = 0
        self._started = 0.0
        self._engine: RolloutEngine | None = None
        self._runtime: EnvironmentRuntime | None = None
        self._facts = {"environment": {}, "context": {}, "tokenizer_digest": ""}

    @contextlib.asynccontextmanager
    async def _opened(self, sessions: ModelSessions) -> AsyncIterator[None]:
        """Open the policy, the summarizer if there is one, and the environment."""
        settings = self._settings
        check_api(self._options.role, settings.model_name, settings.model)
        tokenizer = load_tokenizer(settings.model_name, settings.model, settings.tokenizer_digest)
        self._facts["tokenizer_digest"] = tokenizer.digest if tokenizer else ""
        self._started = asyncio.get_running_loop().time()
        policy = await sessions.model(
            settings.model_name,
            settings.model,
            settings.tokenizer_digest,
            calls_tools=isinstance(settings.environment.turn_dialect, FunctionsDialect),
        )
        summarizer = None
        if settings.environment.summarizer is not None and settings.summarizer is not None:
            summarizer = await sessions.model(
                settings.environment.summarizer, settings.summarizer, settings.summarizer_tokenizer_digest
            )
        self._facts["environment"] = environment_type(settings.environment).facts(settings.environment)
        policy.check_token_ids()
        if policy.codec is None:
            self._facts["tokenizer_digest"] = ""
        self._facts["context"] = self._context_facts(policy.codec)
        self._engine = engine_of(policy, settings.environment, self._options.sampling, role=self._options.role)
        roles = {
            role: (await sessions.model(one.name, one.model, one.tokenizer_digest)).for_role(
                role, one.sampling, only_messages=True
            )
            for role, one in settings.roles.items()
        }
        resources = Resources(summarizer, self._context.store, roles=roles)
        async with open_runtime(settings.environment, resources) as self._runtime:
            self._facts["environment"] |= self._runtime.facts() | self._engine.dialect.facts()
            yield

    def _context_facts(self, tokenizer: ChatTokenizer | None) -> dict[str, str]:
        """Warn if the chat template rewrites earlier turns, which an append-only context does not; return the facts."""
        if tokenizer is None or not traits_of(self._settings.environment).writes_messages:
            return {}
        rewrites = tokenizer.context_rewrites(("user",))
        for sentence in rewrites.values():
            _log.warning(
                "models.%s: the chat template %s; rollouts only append to their context, so the model sees and is "
                "trained on other tokens there",
                self._settings.model_name,
                sentence.rstrip("."),
            )
        return {"context": "append_only", **{f"template_{kind}": sentence for kind, sentence in rewrites.items()}}

    def _count_earlier(self) -> None:
        """Charge the budget with the usage of earlier attempts, including rollouts that were interrupted."""
        for job in self._own_jobs():
            policy_tokens, summarizer_tokens = self._used(job.key)
            self._budget.count(self._settings.model, *policy_tokens)
            if self._settings.summarizer is not None:
                self._budget.count(self._settings.summarizer, *summarizer_tokens)
            for role, tokens in self._asked(job.key).items():
                if role in self._settings.roles:
                    self._budget.count(self._settings.roles[role].model, *tokens)

    def _used(self, key: str) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return prompt and sampled tokens of a rollout so far: those of its policy, and those of its summarizer."""
        if self._journal.is_finished(key):
            stored = self._stored(key)
            counts = {**(stored["telemetry"] or {}), **stored["row"]}
            policy_tokens, helper = ([int(counts.get(name, 0)) for name in names] for names in (_TOKENS, _SUMMARY))
            return (policy_tokens[0], policy_tokens[1]), (helper[0], helper[1])
        cache = JournalCache(self._journal, key)
        used = list(cached_usage(cache))
        answers = [one for one in used if isinstance(one, Completion)]
        return _tokens(answers), _tokens([one for one in used if isinstance(one, CallRecord)])

    def _asked(self, key: str) -> dict[str, tuple[int, int]]:
        """Return prompt and sampled tokens of the models that a rollout has asked so far, by role."""
        if self._journal.is_finished(key):
            stored: dict[str, tuple[int, int]] = self._stored(key).get("asked", {})
            return stored
        asked: dict[str, tuple[int, int]] = {}
        for unit in self._journal.units(key) if self._settings.roles else ():
            role, value = asked_role(unit), self._journal.get(key, unit)
            if role is not None and value is not None:
                answer, (prompt, sampled) = Completion.from_json(value), asked.get(role, (0, 0))
                asked[role] = prompt + answer.prompt_tokens, sampled + answer.completion_tokens
        return asked

    async def _run_job(self, job: RolloutJob) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        head = self._head(job)
        cache: CallCache = JournalCache(self._journal, job.key)
        with timed_work() as clock:
            deadline = clock.time() + self._settings.environment.rollout_time_s
            trajectory = await roll_out_again(
                lambda seed, cache: self._roll_out(job, seed, cache, deadline), head["seed"], cache
            )
        row = row_of(head, trajectory, self._environment_digests.of(job.question), self._facts["tokenizer_digest"])
        self._finish(job, row, trajectory, loop.time() - started)

    async def _roll_out(self, job: RolloutJob, seed: int, cache: CallCache, deadline: float) -> Trajectory:
        assert self._engine is not None and self._runtime is not None
        return await self._engine.roll_out(
            self._runtime.episode(),
            Task.from_row(job.question),
            seed=seed,
            deadline=deadline,
            cache=cache,
            options=EpisodeOptions(group_seed=group_seed(self._settings.seed, job.content_key)),
        )

    def _finish(self, job: RolloutJob, row: Mapping[str, Any], trajectory: Trajectory, seconds: float) -> None:
        telemetry = telemetry_of(row["rollout_key"], self._context.attempt, seconds, trajectory)
        record = {"row": row, "telemetry": telemetry}
        if asked := self._asked(job.key):
            record["asked"] = asked
        self._journal.finish(job.key, orjson.dumps(record))
        self._statuses[trajectory.status] += 1
        self._tokens += trajectory.usage.completion_tokens
        rate = self._tokens / max(asyncio.get_running_loop().time() - self._started, 1e-3)
        self._context.progress.advance(1, tokens_per_s=round(rate), **self._statuses)

    def write(self) -> dict[str, Any]:
        """Check the result of the work, write all rows, and return the metrics."""
        self.check_pending()
        return self._write()

    def _write(self) -> dict[str, Any]:
        worked = self._context.work_result
        tokenizer_digest = worked.facts.get("tokenizer_digest", "")
        totals: Counter[str] = Counter()
        tools = ToolTotals()
        statuses: Counter[str] = Counter()
        odd_answers: Counter[str] = Counter()
        has_text = False
        rows: list[dict[str, Any]] = []
        telemetry: list[dict[str, Any]] = []
        for job in self._jobs_of_rows():
            if self._journal.is_finished(job.key):
                stored = self._stored(job.key)
                # The journal may hold the rollout from before an edit, when the question was another row or in another
                # data set.
                row = {
                    **stored["row"],
                    **self._head(job),
                    "job": job.key if stored["row"]["status"] != FAILED else None,
                }
                if row_telemetry := stored["telemetry"]:
                    telemetry.append({**row_telemetry, "rollout_key": row["rollout_key"]})
                    if not job.is_copy:
                        odd_answers.update(orjson.loads(row_telemetry["odd_answers"]))
                        totals.update({name: row_telemetry[name] for name in (*_SUMMARY, "wasted_tokens")})
            else:
                error = worked.causes.get(job.key, worked.first)
                digest = self._environment_digests.of(job.question)
                row = {**failed_row(self._head(job), error, digest, tokenizer_digest), "job": None}
            rows.append(row)
            statuses[row["status"]] += 1
            has_text = has_text or _has_model_text(row)
            if not job.is_copy:  # The metrics count requests and calls, which were made once.
                totals.update({name: row[name] for name in _SUMMED})
                tools.add(row["tools"])
            if len(rows) == _WRITE_BATCH:
                self._flush(rows, telemetry)
        self._flush(rows, telemetry)
        if statuses["context_full"] == statuses.total() and not totals["calls_requested"]:
            self._refuse_window()
        if not has_text and not self._context.accept_failures:
            raise_no_output(self._context.address, statuses, "rollouts")
        metrics = {
            "num_rollouts": statuses.total(),
            **{f"status_{name}": count for name, count in sorted(statuses.items())},
            **{name: totals[name] for name in (*_SUMMED, "wasted_tokens")},
            "tools": tools.bounded(),
            **{name: totals[name] for name in _SUMMARY if self._settings.environment.summarizer},
            **{f"{ODD}{name}": count for name, count in sorted(odd_answers.items())},
            **worked.facts.get("environment", {}),
            **worked.facts.get("context", {}),
        }
        kind = self._settings.environment.type
        for sentence in unreadable_output_warnings(metrics, environment=kind):
            _log.warning("%s: %s", self._context.address, sentence)
        return metrics

    def _refuse_window(self) -> None:
        """Raise StageFailed because the window is too small for a single call, unless failures are accepted."""
        if self._context.accept_failures:
            return
        name, window = self._settings.model_name, self._settings.model.max_model_len
        remedy = f"serve it with a larger one, then: treadle stage {self._context.address} --force"
        if window is not None:
            remedy = f"raise models.{name}.max_model_len = {window} in a new run"
        raise StageFailed(f"{self._context.address}: no rollout fits the window of model {name}; {remedy}")

    def _flush(self, rows: list[dict[str, Any]], telemetry: list[dict[str, Any]]) -> None:
        self._context.write(ROLLOUTS.kind, rows)
        self._context.write_telemetry(ROLLOUT_TELEMETRY.kind, telemetry)
        rows.clear()
        telemetry.clear()

    def _jobs(self) -> Iterator[RolloutJob]:
        return unique_jobs(self._jobs_of_rows())

    def _jobs_of_rows(self) -> Iterator[RolloutJob]:
        """Yield the job of each row; rows of questions that ask the same have the same job."""
        return rollout_jobs(self._settings, self._context.inputs)

    def _head(self, job: RolloutJob) -> dict[str, Any]:
        name = self._settings.model_name
        seed = rollout_seed(self._settings.seed, job.content_key, name, job.sample_index)
        return head_of_row(job.question, name, job.sample_index, seed)


_TOKENS = ("prompt_tokens", "completion_tokens")
_SUMMARY = ("summarizer_prompt_tokens", "summarizer_completion_tokens")
_SUMMED = ("num_turns", "calls_requested", "calls_executed", "failed_calls", *_TOKENS)


def _tokens(answers: Iterable[Completion | CallRecord]) -> tuple[int, int]:
    """Return the sums of prompt and sampled tokens."""
    found = [(answer.prompt_tokens, answer.completion_tokens) for answer in answers]
    return sum(prompt for prompt, _ in found), sum(completion for _, completion in found)


def _has_model_text(row: Mapping[str, Any]) -> bool:
    return any(segment["kind"] not in SYSTEM_KINDS for segment in orjson.loads(row["segments"]))


def rollout_jobs(settings: RolloutsSettings, inputs: Mapping[str, Sequence[Rows]]) -> Iterator[RolloutJob]:
    """Yield the jobs of all rollouts that settings and questions define, in the order of their rows.

    Questions that ask the same have the same seeds, and so the same jobs: gold answers that episodes do not read are no
    part of a rollout.
    """
    shared, environment = shared_digest(settings, inputs), settings.environment.digests()
    columns = job_columns(traits_of(settings.environment))
    seen: set[bytes] = set()
    for question in selected_questions(settings.options, inputs["questions"], columns):
        content_key = question_content_key(question)
        question_content = [content_key, environment.of(question), question["search"]]
        digest = bytes.fromhex(job_key(*question_content))
        is_copy = digest in seen
        seen.add(digest)
        for sample_index in range(settings.options.samples_per_question):
            key = job_key(shared, *question_content, sample_index)
            yield RolloutJob(key, question, sample_index, is_copy, content_key)


def _owners(result: EarlierResult) -> Iterator[str]:
    return (row["job"] for row in result.rows(ROLLOUTS.kind, ("job",)) if row["job"] is not None)


def _owners_by_status(result: EarlierResult, statuses: Set[str]) -> Iterator[str]:
    rows = result.rows(ROLLOUTS.kind, ("job", "status"))
    return (row["job"] for row in rows if row["job"] is not None and row["status"] in statuses)


def _gaps(result: EarlierResult) -> Iterator[tuple[int, str, bytes]]:
    for position, row in enumerate(result.rows(ROLLOUTS.kind)):
        if row.pop("job") is None:
            yield position, row["status"], orjson.dumps({"row": row, "telemetry": None})


def _records(result: EarlierResult) -> Iterator[tuple[str, bytes]]:
    """Yield the final journal records behind the rows of an earlier result.

    Its telemetry is in the order of its rows.
    """
    row_telemetry = result.telemetry(ROLLOUT_TELEMETRY.kind)
    next_measured = next(row_telemetry, None)
    for row in result.rows(ROLLOUTS.kind):
        telemetry = None
        if next_measured is not None and next_measured["rollout_key"] == row["rollout_key"]:
            telemetry, next_measured = next_measured, next(row_telemetry, None)
        if (key := row.pop("job")) is not None:
            yield key, orjson.dumps({"row": row, "telemetry": telemetry})


def work(context: StageContext) -> WorkResult:
    """Run the unfinished rollouts of one stage instance."""
    with rare_collections():
        return steady_loop.run(RolloutsRun(context).work())


def run(context: StageContext) -> Mapping[str, Any]:
    """Write the rollouts of one stage instance; return counts of statuses, turns, calls and tokens."""
    with rare_collections():
        return RolloutsRun(context).write()


ROLLOUTS_STAGE = Stage(
    name="rollouts",
    version=ENVIRONMENT_VERSION,
    settings=RolloutsSettings,
    consumes={"questions": "questions", "checkpoint": "checkpoint"},
    optional=frozenset({"checkpoint"}),
    produces=(ROLLOUTS,),
    telemetry=(ROLLOUT_TELEMETRY,),
    run=run,
    work=work,
    journal_format=2,
    jobs=StageJobs(
        noun="rollouts",
        of=rollout_jobs,
        owners=_owners,
        records=_records,
        statuses=frozenset(STATUSES),
        with_status=_owners_by_status,
        gaps=_gaps,
    ),
    num_shards=lambda settings: settings.options.shards,
)
