"""Make guided rollouts: like the stage `rollouts`, but a critic chooses each turn among several candidates.

Every candidate and every score is journaled before it is used.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import orjson

from treadle.agent.call_cache import CallCache
from treadle.agent.contract import EpisodeOptions, Task
from treadle.agent.model_sessions import ModelSessions
from treadle.agent.trajectory import Trajectory
from treadle.core.runs.stage import StageContext
from treadle.environments.rollouts.jobs import RolloutJob
from treadle.environments.rollouts.rows import group_seed
from treadle.environments.rollouts.run import RolloutsRun
from treadle.environments.rollouts.usage import TOKENS, used_tokens
from treadle.rl.advantages.teacher_forcing import TeacherForcing, WindowTooSmall
from treadle.rl.guided.settings import GuidedSettings
from treadle.rl.guided.turns import Guide, GuidedTurns, choices_of, guide_tokens
from treadle.rl.guided.writing import GuidedRows
from treadle.rl.preferences.critic_prompts import HiddenStatements, told_messages


class GuidedRun(RolloutsRun):
    """State of one attempt of the stage."""

    _settings: GuidedSettings

    def __init__(self, context: StageContext) -> None:
        super().__init__(context)
        self._guide: Guide | None = None
        self._statements: HiddenStatements | None = None
        self._choices: dict[str, list[dict[str, Any]]] = {}
        """Job key -> choices of its turns, for rollouts that have ended and are not stored yet."""

    @contextlib.asynccontextmanager
    async def _opened(self, sessions: ModelSessions) -> AsyncIterator[None]:
        settings = self._settings
        async with super()._opened(sessions):
            forcing = await TeacherForcing.open(
                sessions,
                critic=(settings.critic_name, settings.critic),
                reference=(settings.model_name, settings.model),
                tokenizer_digest=settings.tokenizer_digest,
            )
            self._guide = Guide(
                forcing,
                settings.options.num_candidates,
                settings.is_mean,
                is_conditioned=settings.reference_conditioning == "hidden_info",
            )
            if settings.hidden:
                keys = frozenset(job.question["question_key"] for job in self._jobs())
                self._statements = HiddenStatements(
                    settings, self._context.inputs["questions"], keys, settings.hidden_chars
                )
            yield

    async def _run_job(self, job: RolloutJob) -> None:
        try:
            await super()._run_job(job)
        except WindowTooSmall as error:
            self._leave_out(job, error)

    def _leave_out(self, job: RolloutJob, error: WindowTooSmall) -> None:
        """Finish a rollout without a row, because a turn does not fit into the window of a model that scores it."""
        tokens, _ = used_tokens(self._journal, job.key)
        stored = {
            "left_out": error.reason,
            "why": str(error),
            "row": {"num_turns": 0, **dict(zip(TOKENS, tokens, strict=True))},
            "telemetry": {},
            "guide_tokens": list(guide_tokens(self._units(job.key))),
        }
        self._journal.finish(job.key, orjson.dumps(stored))
        self._context.progress.advance(1)

    async def _roll_out(self, job: RolloutJob, seed: int, cache: CallCache, deadline: float) -> Trajectory:
        assert self._open is not None and self._guide is not None
        task = Task.from_row(job.question)
        environment = self._open.environments[task.environment]
        engine, episode = environment.engine, environment.runtime.episode()
        turns = GuidedTurns(engine, self._guide, cache)
        try:
            rollout = await engine.with_turns_from(turns).begin(
                episode,
                task,
                seed=seed,
                deadline=deadline,
                cache=cache,
                options=EpisodeOptions(group_seed=group_seed(self._settings.seed, job.content_key)),
            )
            statement = "" if self._statements is None else self._statements.of(task.key)
            told = told_messages([dict(one) for one in rollout.first_messages], statement)
            tools = rollout.first_tools
            turns.begin(engine.prompt_ids(rollout.first_messages, tools), engine.prompt_ids(told, tools))
            while await rollout.advance():
                pass
            trajectory = await rollout.finish()
        finally:
            await episode.close()
        self._choices[job.key] = choices_of(cache, seed, trajectory.num_turns)
        return trajectory

    def _summary(self, job: RolloutJob) -> dict[str, Any]:
        choices = self._choices.pop(job.key)
        return {**super()._summary(job), "choices": choices, "guide_tokens": list(guide_tokens(self._units(job.key)))}

    def _units(self, key: str) -> dict[str, bytes]:
        return {name: self._journal.get(key, name) or b"" for name in self._journal.units(key)}

    def _count_earlier(self) -> None:
        super()._count_earlier()
        for job in self._own_jobs():
            is_finished = self._journal.is_finished(job.key)
            used = self._stored(job.key)["guide_tokens"] if is_finished else guide_tokens(self._units(job.key))
            prompt, completion, critic = used
            self._budget.count(self._settings.model, prompt, completion)
            self._budget.count(self._settings.critic, critic, 0)

    def write(self) -> dict[str, Any]:
        """Score the rollouts, write their rows and return the metrics; raise StageFailed if none has a score."""
        self.check_pending()
        return GuidedRows(self._context).write(self._jobs_of_rows())
