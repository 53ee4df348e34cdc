"""Do the jobs of the stage `exploration`: explore and make tasks, measure the grader, filter, replay."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from treadle.agent.call_cache import CallCache, ScopedCache
from treadle.agent.contract import Task
from treadle.agent.trajectory import Trajectory
from treadle.core.seeds import derive_seed
from treadle.core.untrusted.concealment import user_code
from treadle.datagen.exploration.drafts import MAX_REFERENCE_CHARS, MAX_REFERENCE_STEPS, Draft
from treadle.datagen.exploration.jobs import (
    CalibrationJob,
    ExploreJob,
    FilterJob,
    Job,
    ReplayJob,
    exploring_task,
    objective_task,
)
from treadle.datagen.exploration.opened import OpenExploration
from treadle.datagen.exploration.settings import BY_ENVIRONMENT, ExplorationSettings
from treadle.datagen.exploration.summariser import Summariser
from treadle.datagen.exploration.usage import EXPLORER, GRADER, SOLVER, SUMMARISER
from treadle.datagen.exploration.verdicts import ExplorationJudges, PlayedRollout
from treadle.environments.objectives import Objective
from treadle.environments.registry import traits_of
from treadle.environments.steps import steps_of

HINT = "Another agent solved this task with these steps; they may be wrong:"
"""First line of the hint that shows the solver the reference of a draft."""


@dataclass(frozen=True, slots=True)
class JobWorker:
    """Worker that runs jobs with the open models and environments."""

    settings: ExplorationSettings
    opened: OpenExploration
    summariser: Summariser
    verdicts: ExplorationJudges

    async def run(self, job: Job, cache: CallCache) -> dict[str, Any]:
        """Return the record of a job. Raises ToolError and ModelError if infrastructure keeps it from finishing."""
        if isinstance(job, ExploreJob):
            return await self._explore(job, cache)
        if isinstance(job, CalibrationJob):
            return await self._calibrate(job, cache)
        if isinstance(job, ReplayJob):
            return await self._replay(job, cache)
        return await asyncio.to_thread(self._filter, job)

    async def _explore(self, job: ExploreJob, cache: CallCache) -> dict[str, Any]:
        """Explore a seed task several times; later explorations get the tasks that were made from earlier ones."""
        made: dict[str, Draft] = {}
        counts = {"explorations": 0, "steps": 0, "unreadable": 0, "refused_drafts": 0}
        for number in range(self.settings.options.explorations_per_task):
            known = [draft.query for draft in made.values()]
            trajectory = await self._exploration(job, number, known, cache)
            num_steps = len(steps_of(trajectory.segments))
            counts["explorations"] += 1
            counts["steps"] += num_steps
            if not num_steps:
                continue
            summary = await self.summariser.summarise(
                trajectory,
                self.settings.profiles[job.seed_row["environment"]],
                known,
                seed_key=job.seed_row["question_key"],
                exploration=number,
                cache=ScopedCache(cache, f"{SUMMARISER}-{number}"),
            )
            if summary is None:
                counts["unreadable"] += 1
                continue
            counts["refused_drafts"] += summary.num_refused
            for draft in summary.drafts:
                made.setdefault(draft.key, draft)
        return {"drafts": [draft.as_json() for draft in made.values()], "counts": counts}

    async def _exploration(self, job: ExploreJob, number: int, known: list[str], cache: CallCache) -> Trajectory:
        row = job.seed_row
        profile = self.settings.profiles[row["environment"]]
        strategy = self.settings.options.strategy
        with user_code(strategy, {}):
            instruction = strategy.instruction(profile, known)
        return await self.opened.play(
            EXPLORER,
            exploring_task(row, instruction),
            seed=derive_seed(self.settings.seed, "explore", row["question_key"], number),
            cache=ScopedCache(cache, f"{EXPLORER}-{number}"),
        )

    async def _calibrate(self, job: CalibrationJob, cache: CallCache) -> dict[str, Any]:
        """Let the solver play a seed task, and let both the environment and the grader judge it."""
        task = Task.from_row(job.seed_row)
        seed = derive_seed(self.settings.seed, "calibrate", task.key)
        trajectory = await self.opened.play(SOLVER, task, seed=seed, cache=ScopedCache(cache, SOLVER))
        rollout = PlayedRollout(task, trajectory)
        scored = await self.verdicts.by_task(rollout)
        graded = await self.verdicts.by_grader(rollout, ScopedCache(cache, GRADER))
        return {"scored": scored.correct, "graded": graded.correct, "error": scored.error or graded.error}

    def _filter(self, job: FilterJob) -> dict[str, Any]:
        """Return, for each draft that a filter drops, the type of that filter."""
        left, dropped = list(job.drafts), dict[str, str]()
        for one in self.settings.options.filters:
            with user_code(one, {}):
                kept = {draft.key for draft in one.kept(left)}
            dropped |= {draft.key: one.type for draft in left if draft.key not in kept}
            left = [draft for draft in left if draft.key in kept]
        return {"dropped": dropped}

    async def _replay(self, job: ReplayJob, cache: CallCache) -> dict[str, Any]:
        """Let the solver try a draft with its reference as a hint, and judge the rollout."""
        draft = job.draft
        task = self._task(job)
        trajectory = await self.opened.play(
            SOLVER,
            task,
            seed=derive_seed(self.settings.seed, "replay", draft.key),
            cache=ScopedCache(cache, SOLVER),
            hint=hint_of(draft),
        )
        rollout = PlayedRollout(task, trajectory)
        verdict = await self.verdicts.by_grader(rollout, ScopedCache(cache, GRADER))
        return {
            "correct": verdict.correct,
            "score": verdict.score,
            "error": verdict.error or "",
            "status": trajectory.status,
            "reference": reference_of(trajectory),
            "prediction": rollout.prediction if _has_answers(self.settings, job.seed_row) else "",
        }

    def _task(self, job: ReplayJob) -> Task:
        name = self.settings.options.grader
        objective = Objective(name, job.draft.reference)
        scorer = None if name == BY_ENVIRONMENT else name
        return objective_task(job.seed_row, job.draft.query, objective, job.draft.key, scorer)


def hint_of(draft: Draft) -> str:
    """Return the hint that shows the solver the reference of a draft."""
    return "\n".join([HINT, *(f"{number}. {action}" for number, action in enumerate(draft.reference, 1))])


def reference_of(trajectory: Trajectory) -> list[str]:
    """Return the actions of a rollout; an empty list for one that is too long for a reference."""
    actions = [step.action for step in steps_of(trajectory.segments) if step.action]
    is_short = len(actions) <= MAX_REFERENCE_STEPS and sum(map(len, actions)) <= MAX_REFERENCE_CHARS
    return actions if is_short else []


def _has_answers(settings: ExplorationSettings, row: Mapping[str, Any]) -> bool:
    return traits_of(settings.environment_of(row)).has_answers
