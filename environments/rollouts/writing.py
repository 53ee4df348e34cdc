"""Write the rows of finished rollouts in the order of the questions, not of completion, and count them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from treadle.agent.jobs.runner import raise_no_output
from treadle.core.answers.extraction import SYSTEM_KINDS
from treadle.core.errors import StageFailed
from treadle.core.runs.stage import StageContext
from treadle.environments.diagnosis.causes import ROLLOUT_PROBLEMS
from treadle.environments.diagnosis.diagnosis import endings_text
from treadle.environments.diagnosis.facts import Facts
from treadle.environments.mixture import summarizer_of
from treadle.environments.rollouts.jobs import RolloutJob
from treadle.environments.rollouts.report import ODD, in_environment
from treadle.environments.rollouts.rows import FAILED, failed_row, head_of_row, rollout_seed
from treadle.environments.rollouts.settings import RolloutsSettings
from treadle.environments.rollouts.tables import ROLLOUT_TELEMETRY, ROLLOUTS
from treadle.environments.rollouts.tool_counts import ToolTotals
from treadle.environments.rollouts.usage import SUMMARY_TOKENS, TOKENS

_log = logging.getLogger(__name__)

_WRITE_BATCH = 256
"""Rows passed to the writer at once."""
_SUMMED = ("num_turns", "calls_requested", "calls_executed", "failed_calls", *TOKENS)


def head_of(job: RolloutJob, settings: RolloutsSettings) -> dict[str, Any]:
    """Return the columns of a job's row that are known before the rollout starts."""
    name = settings.model_name
    seed = rollout_seed(settings.seed, job.content_key, name, job.sample_index)
    return head_of_row(job.question, name, job.sample_index, seed)


@dataclass(slots=True)
class _Totals:
    """Counts over all rollouts, or over those of one environment."""

    statuses: Counter[str] = field(default_factory=Counter)
    sums: Counter[str] = field(default_factory=Counter)
    num_trimmed: int = 0

    def metrics(self) -> dict[str, int]:
        """Return the number of rollouts, how they ended, how many were trimmed and how many calls they asked for."""
        return {
            "num_rollouts": self.statuses.total(),
            **{f"status_{name}": count for name, count in sorted(self.statuses.items())},
            **({"num_trimmed": self.num_trimmed} if self.num_trimmed else {}),
            "calls_requested": self.sums["calls_requested"],
        }

    def problems(self) -> list[str]:
        """Return sentences about problems that these counts show, for the log; the stage's summary adds causes."""
        facts = Facts(
            statuses=dict(self.statuses.most_common()),
            num_calls=self.sums["calls_requested"],
            num_executed=self.sums["calls_executed"],
            num_failed_calls=self.sums["failed_calls"],
        )
        found = [problem.sentence(facts) for problem in ROLLOUT_PROBLEMS.problems_of(facts)]
        return [f"{sentence} ({endings_text(facts.statuses)})" for sentence in found]


class RowWriter:
    """Writer of all rows of an instance, which counts what it writes."""

    def __init__(self, context: StageContext, settings: RolloutsSettings) -> None:
        self._context = context
        self._settings = settings
        self._digests = settings.environment_digests()
        self._tokenizer_digest = context.work_result.facts.get("tokenizer_digest", "")
        self._all = _Totals()
        self._by_environment: dict[str, _Totals] = {}
        self._tools = ToolTotals()
        self._odd_answers: Counter[str] = Counter()
        self._has_text = False
        self._rows: list[dict[str, Any]] = []
        self._telemetry: list[dict[str, Any]] = []

    def write(self, jobs: Iterable[RolloutJob]) -> dict[str, Any]:
        """Write the rows of all jobs, copies for equal questions included; return the metrics.

        Raises StageFailed as `_check` does.
        """
        for job in jobs:
            row = self._finished(job) if self._context.journal.is_finished(job.key) else self._failed(job)
            self._count(row, job)
            self._rows.append(row)
            if len(self._rows) == _WRITE_BATCH:
                self._flush()
        self._flush()
        self._check()
        for name, totals in sorted(self._by_environment.items()):
            for sentence in in_environment(totals.problems(), name, is_mixture=self._settings.is_mixture):
                _log.warning("%s: %s; why, with examples: in its summary", self._context.address, sentence)
        return self._metrics()

    def _finished(self, job: RolloutJob) -> dict[str, Any]:
        stored = orjson.loads(self._context.journal.finished(job.key))
        # The journal may hold the rollout from before an edit, when the question was another row or in another
        # data set.
        row = {
            **stored["row"],
            **head_of(job, self._settings),
            "job": job.key if stored["row"]["status"] != FAILED else None,
        }
        if telemetry := stored["telemetry"]:
            self._telemetry.append({**telemetry, "rollout_key": row["rollout_key"]})
            if not job.is_copy:
                self._odd_answers.update(orjson.loads(telemetry["odd_answers"]))
                self._all.sums.update({name: telemetry[name] for name in (*SUMMARY_TOKENS, "wasted_tokens")})
        return row

    def _failed(self, job: RolloutJob) -> dict[str, Any]:
        worked = self._context.work_result
        error, digest = worked.causes.get(job.key, worked.first), self._digests.of(job.question)
        return {**failed_row(head_of(job, self._settings), error, digest, self._tokenizer_digest), "job": None}

    def _count(self, row: Mapping[str, Any], job: RolloutJob) -> None:
        self._has_text = self._has_text or _has_model_text(row)
        for totals in (self._all, self._by_environment.setdefault(row["environment"], _Totals())):
            totals.statuses[row["status"]] += 1
            totals.num_trimmed += len(row["samples"]) > 1
            if not job.is_copy:  # The metrics count requests and calls, which were made once.
                totals.sums.update({name: row[name] for name in _SUMMED})
        if not job.is_copy:
            self._tools.add(row["tools"])

    def _check(self) -> None:
        """Raise StageFailed if no rollout can be used, unless failures are accepted."""
        statuses = self._all.statuses
        if statuses["context_full"] == statuses.total() and not self._all.sums["calls_requested"]:
            self._refuse_window()
        if not self._has_text and not self._context.accept_failures:
            raise_no_output(self._context.address, statuses, "rollouts")

    def _metrics(self) -> dict[str, Any]:
        sums, facts = self._all.sums, self._context.work_result.facts
        has_summarizer = summarizer_of(self._settings.named_environments()) is not None
        by_name = {name: totals.metrics() for name, totals in sorted(self._by_environment.items())}
        return {
            **self._all.metrics(),
            **{name: sums[name] for name in (*_SUMMED, "wasted_tokens")},
            "tools": self._tools.bounded(),
            **{name: sums[name] for name in SUMMARY_TOKENS if has_summarizer},
            **{f"{ODD}{name}": count for name, count in sorted(self._odd_answers.items())},
            **(self._settings.named_metrics(by_name) if self._settings.is_mixture else {}),
            **facts.get("environment", {}),
            **facts.get("context", {}),
        }

    def _refuse_window(self) -> None:
        """Raise StageFailed because the window is too small for a single call, unless failures are accepted."""
        if self._context.accept_failures:
            return
        name, window = self._settings.model_name, self._settings.model.max_model_len
        remedy = f"serve it with a larger one, then: treadle stage {self._context.address} --force"
        if window is not None:
            remedy = f"raise models.{name}.max_model_len = {window} in a new run"
        raise StageFailed(f"{self._context.address}: no rollout fits the window of model {name}; {remedy}")

    def _flush(self) -> None:
        self._context.write(ROLLOUTS.kind, self._rows)
        self._context.write_telemetry(ROLLOUT_TELEMETRY.kind, self._telemetry)
        self._rows.clear()
        self._telemetry.clear()


def _has_model_text(row: Mapping[str, Any]) -> bool:
    return any(segment["kind"] not in SYSTEM_KINDS for segment in orjson.loads(row["segments"]))
