"""Score candidates by teacher forcing; if critic and reference are equal and see the same prompt, all scores are 0.

Each turn is a job, whose requests are journaled, so that an interrupted job resumes.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from treadle.agent.call_cache import JournalCache
from treadle.agent.jobs.keys import job_key, shared_digest
from treadle.agent.jobs.stage import JobStage
from treadle.agent.model_sessions import ModelSessions
from treadle.core.errors import StageFailed
from treadle.core.gather import gather_all
from treadle.core.runs.stage import StageContext
from treadle.core.work_clock import timed_work
from treadle.rl.advantages.best_of import BestOf, held_out_rollouts
from treadle.rl.advantages.settings import AdvantagesSettings
from treadle.rl.advantages.teacher_forcing import ScoredSpan, ScoringRole, TeacherForcing, WindowTooSmall
from treadle.rl.preferences.aggregates import advantage
from treadle.rl.preferences.critic_prompts import HiddenStatements, PromptRenderer
from treadle.rl.preferences.tables import ADVANTAGES

_READ = (
    "turn_key", "candidate", "rollout_key", "question_key", "environment", "turn", "first_messages", "tool_schemas",
    "prompt_ids", "num_first_ids", "ids", "mask", "num_tokens", "tokenizer_digest",
)  # fmt: skip
_COPIED = ("turn_key", "candidate", "rollout_key", "question_key", "turn", "num_tokens")
_ROLES: tuple[ScoringRole, ...] = ("critic", "reference")


@dataclass(frozen=True, slots=True)
class ScoredTurn:
    """Job: the candidates of one turn, as rows of `candidates`; the journal stores its scores under `key`.

    With `is_task`, the candidates are whole rollouts of a task, each with its `reward`.
    """

    key: str
    candidates: Sequence[Mapping[str, Any]]
    is_task: bool = False


class AdvantagesRun(JobStage[ScoredTurn]):
    """State of one attempt of the stage."""

    NOUN = "turns"

    def __init__(self, context: StageContext) -> None:
        self._settings: AdvantagesSettings = context.settings
        super().__init__(context, self._settings.options)
        self._shared = shared_digest(self._settings, context.inputs)
        self._statements: HiddenStatements | None = None
        self._forcing: TeacherForcing | None = None
        self._prompts: PromptRenderer | None = None

    @contextlib.asynccontextmanager
    async def _opened(self, sessions: ModelSessions) -> AsyncIterator[None]:
        settings = self._settings
        self._forcing = await TeacherForcing.open(
            sessions,
            critic=(settings.critic_name, settings.critic),
            reference=(settings.reference_name, settings.reference),
            tokenizer_digest=settings.tokenizer_digest,
        )
        self._prompts = PromptRenderer(settings, self._forcing.tokenizer)
        if settings.hidden:
            keys = frozenset(turn.candidates[0]["question_key"] for turn in self._jobs())
            self._statements = HiddenStatements(
                settings, self._context.inputs["questions"], keys, settings.hidden_chars
            )
        yield

    async def _run_job(self, job: ScoredTurn) -> None:
        assert self._forcing is not None
        cache = JournalCache(self._journal, job.key)
        # Candidates for a turn follow one prompt; rollouts of a task may each begin with another one.
        prompts = {_prompt_of(row): row for row in reversed(job.candidates)}
        contexts = {prompt: self._contexts(row) for prompt, row in prompts.items()}
        # Equal candidates are scored once; a policy with low entropy samples many of them.
        different = {_text_of(row): row for row in reversed(job.candidates)}
        asked = [
            (role, ScoredSpan(contexts[prompt][role], ids, mask, row["turn_key"], f"{role}/{row['candidate']}"))
            for role in _ROLES
            for (prompt, ids, mask), row in different.items()
        ]
        try:
            for role, span in asked:
                self._forcing.check(role, span)
            with timed_work() as clock:
                deadline = clock.time() + self._settings.options.turn_time_s
                scored = await gather_all(
                    [self._forcing.score(role, span, cache=cache, deadline=deadline) for role, span in asked]
                )
        except WindowTooSmall as error:
            self._leave_out(job, error)
            return
        places = [(role, text) for role in _ROLES for text in different]
        totals = {place: total for place, (total, _) in zip(places, scored, strict=True)}
        sums = {role: [totals[role, _text_of(row)] for row in job.candidates] for role in _ROLES}
        self._journal.finish(job.key, orjson.dumps({**sums, "prompt_tokens": sum(used for _, used in scored)}))
        self._context.progress.advance(1)

    def _leave_out(self, job: ScoredTurn, error: WindowTooSmall) -> None:
        """Finish a job without advantages, because a candidate does not fit into a model's context window.

        Scoring only the candidates that fit would compare only short ones.
        """
        left_out = {"left_out": error.reason, "why": str(error), "prompt_tokens": self._tokens_of_units(job.key)}
        self._journal.finish(job.key, orjson.dumps(left_out))
        self._context.progress.advance(1)

    def _tokens_of_units(self, key: str) -> int:
        units = (self._journal.get(key, unit) for unit in self._journal.units(key))
        return sum(orjson.loads(value)[1] for value in units if value is not None)

    def _contexts(self, row: Mapping[str, Any]) -> dict[ScoringRole, list[int]]:
        """Return the token ids that critic and reference see before a candidate."""
        assert self._prompts is not None
        plain, num_first = list(row["prompt_ids"]), row["num_first_ids"]
        self._prompts.check(row, plain[:num_first])
        hidden = plain
        if self._statements is not None:
            hidden = [*self._prompts.ids(row, self._statements.of(row["question_key"])), *plain[num_first:]]
        is_conditioned = self._settings.options.reference_conditioning == "hidden_info"
        return {"critic": hidden, "reference": hidden if is_conditioned else plain}

    def _count_earlier(self) -> None:
        """Count the tokens of earlier attempts against the budget."""
        for job in self._own_jobs():
            if self._journal.is_finished(job.key):
                self._budget.count(self._settings.critic, self._stored(job.key)["prompt_tokens"], 0)
            else:
                self._budget.count(self._settings.critic, self._tokens_of_units(job.key), 0)

    def _jobs(self) -> Iterator[ScoredTurn]:
        yield from self._turns()
        if self._settings.options.best_of:
            for rows in held_out_rollouts(self._context.inputs):
                key = job_key(self._shared, "task", [[row["prompt_ids"], row["ids"], row["mask"]] for row in rows])
                yield ScoredTurn(key, rows, is_task=True)

    def _turns(self) -> Iterator[ScoredTurn]:
        rows = (row for table in self._context.inputs["candidates"] for row in table.rows(_READ))
        for turn_key, group in itertools.groupby(rows, key=lambda row: row["turn_key"]):
            usable = [row for row in group if row["num_tokens"]]
            if usable:
                ids = [[row["ids"], row["mask"]] for row in usable]
                yield ScoredTurn(job_key(self._shared, turn_key, usable[0]["prompt_ids"], ids), usable)

    def write(self) -> Mapping[str, Any]:
        """Write a row per candidate and return metrics; raise StageFailed if there is no advantage, or if all are 0."""
        self.check_pending()
        advantages: list[float] = []
        counts: Counter[str] = Counter()
        first_why = ""
        best_of = BestOf()
        for job in self._jobs():
            if not self._journal.is_finished(job.key):
                counts["failed_turns"] += 1
                continue
            stored = self._stored(job.key)
            if "left_out" in stored:
                counts[f"{'best_of.' if job.is_task else ''}left_out.{stored['left_out']}"] += 1
                first_why = first_why or stored["why"]
                continue
            rows = list(self._rows(job, stored))
            if job.is_task:
                best_of.add([row["reward"] for row in job.candidates], [row["advantage"] for row in rows])
                continue
            self._context.write(ADVANTAGES.kind, rows)
            advantages += [row["advantage"] for row in rows]
            counts["turns"] += 1
        self._check(advantages, counts, first_why)
        return {
            "turns": counts.pop("turns"),
            "candidates": len(advantages),
            "mean_advantage": statistics.fmean(advantages),
            "std_advantage": statistics.pstdev(advantages),
            **dict(sorted(counts.items())),
            **best_of.metrics(),
        }

    def _check(self, advantages: Sequence[float], counts: Counter[str], first_why: str) -> None:
        """Raise StageFailed if there is no advantage, or if all are 0."""
        if not advantages:
            left_out = "".join(f", {count:,} {name}" for name, count in sorted(counts.items()) if "left_out" in name)
            raise StageFailed(
                f"{self._context.address}: no candidate is scored, {counts['failed_turns']:,} turns failed{left_out}; "
                f"{first_why or 'run again'}"
            )
        if not any(advantages):
            raise StageFailed(
                f"{self._context.address}: all {len(advantages):,} advantages are 0: the critic is no other model than "
                "the reference; check that `dpo@critic` trained it, and that the right checkpoint is served"
            )

    def _rows(self, job: ScoredTurn, stored: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        for row, critic, reference in zip(job.candidates, stored["critic"], stored["reference"], strict=True):
            yield {
                **{name: row[name] for name in _COPIED if name in row},
                "critic_sum": critic,
                "reference_sum": reference,
                "advantage": advantage(critic, reference, row["num_tokens"], is_mean=self._settings.is_mean),
            }


def _prompt_of(row: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(row["prompt_ids"])


def _text_of(row: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return prompt, ids and mask of a candidate; candidates with the same result are scored once."""
    return _prompt_of(row), tuple(row["ids"]), tuple(row["mask"])
