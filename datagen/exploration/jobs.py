"""Define the jobs of the stage `exploration`: explorations, calibrations, one for all filters, and replays.

The filters need the drafts of all explorations, and replays need the drafts that the filters kept. So these jobs are
known only after the jobs before them have finished.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from treadle.agent.contract import HIDDEN_COLUMNS, TASK_COLUMNS, Task
from treadle.agent.jobs.keys import job_key
from treadle.core.config import semantic_dump
from treadle.core.runs.stage import JournalView, Rows
from treadle.core.store.buckets import draw
from treadle.datagen.exploration.drafts import Draft
from treadle.datagen.exploration.settings import ExplorationSettings
from treadle.environments.objectives import Objective, with_objective
from treadle.environments.rollouts.settings import selected_questions

CONTENT_VERSION = 1
"""Version in the key of each job; increment it if jobs do their work in another way."""
EXPLORING, FILTERING, REPLAYING = range(3)
"""Phases: explorations and calibrations, then the filters, then replays."""
_READ = (*TASK_COLUMNS, *HIDDEN_COLUMNS, "split")


@dataclass(frozen=True, slots=True)
class ExploreJob:
    """Explorations of one seed task, and the tasks made from them. The job's journal records are stored under `key`."""

    key: str
    seed_row: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CalibrationJob:
    """One rollout of a seed task, on which grader and environment are compared."""

    key: str
    seed_row: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FilterJob:
    """Run of all filters over all drafts."""

    key: str
    drafts: Sequence[Draft]


@dataclass(frozen=True, slots=True)
class ReplayJob:
    """Attempt to solve a draft."""

    key: str
    draft: Draft
    seed_row: Mapping[str, Any]


Job = ExploreJob | CalibrationJob | FilterJob | ReplayJob


class ExplorationJobs:
    """Jobs of the stage that are known so far; later ones depend on results in the journal."""

    def __init__(
        self,
        settings: ExplorationSettings,
        inputs: Mapping[str, Sequence[Rows]],
        journal: JournalView,
        *,
        accepts_failures: bool,
    ) -> None:
        """Read the seed tasks; with `accepts_failures`, filters do not wait for explorations that failed."""
        self._settings = settings
        self._journal = journal
        self._accepts_failures = accepts_failures
        self._weights = [table.digest for table in inputs.get("checkpoint", ())]
        self._digests = {name: one.digest() for name, one in settings.named_environments().items()}
        self._episode_models = [semantic_dump(settings.environment_roles), semantic_dump(settings.summarizer)]
        """Models that episodes ask, by role, and the summarizer of pages."""
        self.seed_rows = {
            row["question_key"]: row for row in selected_questions(settings.options, inputs["questions"], _READ)
        }
        """Rows of the seed tasks by key, in their order."""
        self.last_phase = REPLAYING
        """Last phase whose jobs are yielded; jobs of earlier phases are yielded, too."""

    def __iter__(self) -> Iterator[Job]:
        explorations = list(self.explorations())
        yield from explorations
        yield from self.calibrations()
        is_explored = all(self._journal.is_finished(job.key) for job in explorations)
        if self.last_phase == EXPLORING or not (is_explored or self._accepts_failures):
            return
        if (job := self.filter_job()) is not None:
            yield job
            if self.last_phase == REPLAYING:
                yield from self.replays()

    def explorations(self) -> Iterator[ExploreJob]:
        """Yield the job of each seed task."""
        options, roles = self._settings.options, self._settings.roles
        shared = [
            semantic_dump({name: roles[name] for name in ("explorer", "summariser")}),
            semantic_dump(options.strategy),
            [options.explorations_per_task, options.attempts, options.step_chars, options.summary_time_s],
            self._settings.prompt_digests,
        ]
        profiles = {name: semantic_dump(one) for name, one in self._settings.profiles.items()}
        for row in self.seed_rows.values():
            yield ExploreJob(self._key("explore", row, [*shared, profiles[row["environment"]]]), row)

    def calibrations(self) -> Iterator[CalibrationJob]:
        """Yield the jobs that compare a grader with the environment, on seed tasks drawn by the seed of the run."""
        settings = self._settings
        if settings.grader is None:
            return
        seed, number = settings.seed, settings.options.calibration_tasks
        chosen = heapq.nsmallest(number, self.seed_rows, key=lambda key: (draw(seed, "calibration", key), key))
        shared = [semantic_dump(settings.roles["solver"]), semantic_dump(settings.grader)]
        for key in chosen:
            row = self.seed_rows[key]
            scorer = semantic_dump(settings.scorers.get(row["scorer"]))
            asked = [row["question"], list(row["choices"]), list(row["answers"]), row["scorer"], scorer]
            yield CalibrationJob(self._key("calibrate", row, [*shared, asked]), row)

    def drafts(self) -> list[Draft]:
        """Return the drafts of all finished explorations, each once."""
        found: dict[str, Draft] = {}
        for job in self.explorations():
            if self._journal.is_finished(job.key):
                for data in self.stored(job.key)["drafts"]:
                    draft = Draft.from_json(data)
                    found.setdefault(draft.key, draft)
        return list(found.values())

    def filter_job(self) -> FilterJob | None:
        """Return the job of the filters; None if there is no draft."""
        drafts = self.drafts()
        if not drafts:
            return None
        filters = [semantic_dump(one) for one in self._settings.options.filters]
        contents = [draft.as_json() for draft in drafts]
        return FilterJob(job_key(CONTENT_VERSION, "filter", filters, contents), drafts)

    def replays(self) -> Iterator[ReplayJob]:
        """Yield the replay of each draft that the filters kept; none before the job of the filters has finished."""
        job = self.filter_job()
        if job is None or not self._journal.is_finished(job.key):
            return
        dropped = self.stored(job.key)["dropped"]
        settings = self._settings
        shared = [semantic_dump(settings.roles["solver"]), semantic_dump(settings.grader), settings.options.grader]
        for draft in job.drafts:
            if draft.key not in dropped:
                row = self.seed_rows[draft.seed_key]
                asked = [draft.query, list(draft.reference)]
                yield ReplayJob(self._key("replay", row, [*shared, asked]), draft, row)

    def stored(self, key: str) -> dict[str, Any]:
        """Return the record of a finished job."""
        record: dict[str, Any] = orjson.loads(self._journal.finished(key))
        return record

    def _key(self, kind: str, row: Mapping[str, Any], parts: Sequence[Any]) -> str:
        state = [row["question_key"], row["payload"], row["search"], row["environment"]]
        digest = self._digests[row["environment"]]
        return job_key(
            CONTENT_VERSION, kind, self._settings.seed, self._weights, self._episode_models, digest, state, parts
        )


def exploring_task(row: Mapping[str, Any], instruction: str) -> Task:
    """Return a task on the state of a seed task, with an instruction instead of the seed task's own text."""
    return _on_state_of(row, instruction, Objective(), row["question_key"])


def objective_task(row: Mapping[str, Any], query: str, objective: Objective, key: str, scorer: str | None) -> Task:
    """Return a task on the state of a seed task that asks `query` and has an objective of its own."""
    return _on_state_of(row, query, objective, key, scorer)


def _on_state_of(row: Mapping[str, Any], text: str, objective: Objective, key: str, scorer: str | None = None) -> Task:
    return Task(
        key=key,
        text=text,
        dataset=row["dataset"],
        domain=domain_of(row),
        scorer=scorer,
        search=row["search"],
        environment=row["environment"],
        payload=with_objective(orjson.loads(row["payload"]), objective),
    )


def domain_of(row: Mapping[str, Any]) -> str:
    """Return the domain of tasks on the state of a seed task: its own, or `qa` if it is multiple choice."""
    return "qa" if row["choices"] else str(row["domain"])
