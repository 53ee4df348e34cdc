"""Score finished guided rollouts, write their rows in the order of the tasks, and compare them with plain rollouts."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from treadle.core.errors import StageFailed
from treadle.core.runs.stage import StageContext
from treadle.environments.rollouts.jobs import RolloutJob
from treadle.environments.rollouts.rows import FAILED
from treadle.environments.rollouts.writing import head_of
from treadle.rl.guided.figures import TaskVerdicts, comparison
from treadle.rl.guided.scoring import GuidedRow, scored
from treadle.rl.guided.settings import GuidedSettings
from treadle.rl.guided.tables import GUIDED_ROLLOUTS

_BATCH_ROWS = 256
_PLAIN = ("question_key", "status", "score", "correct")


class GuidedRows:
    """Writer of the rows of an instance."""

    def __init__(self, context: StageContext) -> None:
        self._context = context
        self._settings: GuidedSettings = context.settings
        self._counts: Counter[str] = Counter()
        self._verdicts = TaskVerdicts()
        self._first_error = context.work_result.first

    def write(self, jobs: Iterable[RolloutJob]) -> dict[str, Any]:
        """Write the rows of all finished jobs and return the metrics; raise StageFailed if none has a score."""
        rows = scored(self._settings, self._context.inputs["questions"], self._rows(jobs), self._context.store)
        while batch := list(itertools.islice(rows, _BATCH_ROWS)):
            for row in batch:
                self._verdicts.add(row["question_key"], row["score"], row["correct"])
                self._first_error = self._first_error or row["error"] or ""
            self._context.write(GUIDED_ROLLOUTS.kind, batch)
        counts, without = self._counts, self._verdicts.num_without
        if not self._verdicts.tasks:
            left_out = sum(count for name, count in counts.items() if name.startswith("left_out."))
            raise StageFailed(
                f"{self._context.address}: 0 of {counts['rollouts']:,} rollouts have a score, "
                f"{counts['failed_rollouts']:,} failed, {left_out:,} are left out; first error: {self._first_error}; "
                "correct the scorer of these tasks, or run again"
            )
        return {
            "num_candidates": self._settings.options.num_candidates,
            **dict(sorted(counts.items())),
            **({"rollouts_without_score": without} if without else {}),
            **comparison(self._verdicts, self._plain()),
        }

    def _rows(self, jobs: Iterable[RolloutJob]) -> Iterator[GuidedRow]:
        """Yield the rollouts of finished jobs; count them, and those that failed or are left out."""
        for job in jobs:
            if not self._context.journal.is_finished(job.key):
                self._counts["failed_rollouts"] += 1
                continue
            stored = orjson.loads(self._context.journal.finished(job.key))
            if "left_out" in stored:
                self._counts[f"left_out.{stored['left_out']}"] += 1
                self._first_error = self._first_error or stored["why"]
                continue
            row, choices = stored["row"], stored["choices"]
            num_scored = sum(bool(one["scored"]) for one in choices)
            self._counts.update(rollouts=1, turns=len(choices), scored_turns=num_scored)
            self._counts[f"status_{row['status']}"] += 1
            yield {**row, **head_of(job, self._settings)}, choices

    def _plain(self) -> TaskVerdicts:
        """Return the verdicts on the policy's plain rollouts of the same tasks."""
        found, tasks = TaskVerdicts(), frozenset(self._verdicts.tasks)
        for row in (row for table in self._context.inputs["scores"] for row in table.rows(_PLAIN)):
            if row["question_key"] in tasks and row["status"] != FAILED:
                found.add(row["question_key"], row["score"], row["correct"])
        return found
