"""Write the rows of the stage `exploration` in the order of the seed tasks, and count them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import orjson

from treadle.core.errors import StageFailed
from treadle.core.runs.stage import StageContext
from treadle.datagen.exploration.calibration import agreement_metrics
from treadle.datagen.exploration.drafts import Draft
from treadle.datagen.exploration.jobs import ExplorationJobs, ReplayJob
from treadle.datagen.exploration.rows import objective_row, task_row
from treadle.datagen.exploration.settings import ExplorationSettings
from treadle.datagen.exploration.tables import OBJECTIVES, SYNTHETIC_TASKS

STATUSES = ("kept", "filtered", "infeasible", "ungraded", "duplicate", "failed")


class TaskWriter:
    """Writer of the tasks that were made, and of all drafts with their statuses."""

    def __init__(self, context: StageContext, jobs: ExplorationJobs) -> None:
        self._context = context
        self._settings: ExplorationSettings = context.settings
        self._jobs = jobs
        self._statuses: Counter[str] = Counter()
        self._filters: Counter[str] = Counter()
        self._keys: set[str] = set()

    def write(self) -> dict[str, Any]:
        """Write all rows and return the metrics; raise StageFailed if no task was made."""
        filtered = self._jobs.filter_job()
        dropped = self._jobs.stored(filtered.key)["dropped"] if filtered is not None else {}
        replays = {job.draft.key: job for job in self._jobs.replays()}
        for draft in filtered.drafts if filtered is not None else ():
            if draft.key in dropped:
                self._filters[dropped[draft.key]] += 1
                self._write(objective_row(draft, "filtered", dropped[draft.key]))
            else:
                self._write_replayed(draft, replays[draft.key])
        metrics = self._metrics()
        if not self._statuses["kept"]:
            self._refuse(metrics)
        return metrics

    def _write_replayed(self, draft: Draft, job: ReplayJob) -> None:
        journal, worked = self._context.journal, self._context.work_result
        if not journal.is_finished(job.key):
            self._write(objective_row(draft, "failed", worked.causes.get(job.key, worked.first)))
            return
        replayed = self._jobs.stored(job.key)
        known = {"score": replayed["score"], "replay_status": replayed["status"]}
        if replayed["correct"] is None:
            self._write(objective_row(draft, "ungraded", replayed["error"]) | known)
            return
        if not replayed["correct"] or not replayed["reference"]:
            self._write(objective_row(draft, "infeasible") | known)
            return
        row = task_row(draft, job.seed_row, replayed, self._settings)
        if row["question_key"] in self._keys:
            self._write(objective_row(draft, "duplicate") | known)
            return
        self._keys.add(row["question_key"])
        self._context.write(SYNTHETIC_TASKS.kind, [{**row, "source_row": len(self._keys)}])
        reference = orjson.dumps(replayed["reference"]).decode()
        kept = {"reference": reference, "question_key": row["question_key"]}
        self._write(objective_row(draft, "kept") | known | kept)

    def _write(self, row: Mapping[str, Any]) -> None:
        self._statuses[row["status"]] += 1
        self._context.write(OBJECTIVES.kind, [row])

    def _metrics(self) -> dict[str, Any]:
        jobs, journal = self._jobs, self._context.journal
        finished = [job for job in jobs.explorations() if journal.is_finished(job.key)]
        counts: Counter[str] = Counter()
        tokens: Counter[str] = Counter()
        for job in finished:
            counts.update(jobs.stored(job.key)["counts"])
        for one in jobs:
            for role, (prompt, sampled) in jobs.stored(one.key)["used"].items() if journal.is_finished(one.key) else ():
                tokens.update({f"tokens.{role}.prompt": prompt, f"tokens.{role}.sampled": sampled})
        return {
            "seed_tasks": len(jobs.seed_rows),
            **{name: counts[name] for name in ("explorations", "steps", "unreadable", "refused_drafts")},
            "drafts": self._statuses.total(),
            **{f"status_{name}": self._statuses[name] for name in STATUSES},
            **{f"filter.{name}": count for name, count in sorted(self._filters.items())},
            **self.agreement(),
            **dict(sorted(tokens.items())),
        }

    def agreement(self) -> dict[str, Any]:
        """Return the metrics of `agreement_metrics`, or nothing if the environment is the grader."""
        if self._settings.grader is None:
            return {}
        finished = (job.key for job in self._jobs.calibrations() if self._context.journal.is_finished(job.key))
        return agreement_metrics(self._jobs.stored(key) for key in finished)

    def _refuse(self, metrics: Mapping[str, Any]) -> None:
        counts = ", ".join(f"{name} {self._statuses[name]:,}" for name in STATUSES if self._statuses[name])
        raise StageFailed(
            f"{self._context.address}: no task was made of {metrics['explorations']:,} explorations with "
            f"{metrics['steps']:,} steps; drafts: {counts or 'none'}, summaries that cannot be read: "
            f"{metrics['unreadable']:,}; look at what the models of exploration.roles write, or explore more tasks"
        )
