"""Write the tables of the stage `pools` in the order of the questions, and count what they hold."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from treadle.core.runs.stage import StageContext
from treadle.datagen.pools.exit_check import PoolExitCheck
from treadle.datagen.pools.report import PoolReport, pool_warnings
from treadle.datagen.pools.tables import POOL_EVENTS, POOL_QUESTIONS, POOLS
from treadle.environments.rollouts.tables import ROLLOUT_TELEMETRY

_log = logging.getLogger(__name__)

_WRITE_BATCH = 64
"""Number of questions whose rows are written at once."""


class PoolsWriter:
    """Writer of all rows of an instance; `add` every question, then `finish`."""

    def __init__(self, context: StageContext, operators: Sequence[str]) -> None:
        self._context = context
        self._report, self._exit_check = PoolReport(operators), PoolExitCheck()
        self._tables: dict[str, list[dict[str, Any]]] = {"pool": [], "events": [], "question": [], "telemetry": []}

    def add(self, stored: dict[str, Any]) -> None:
        """Take the rows of a question: its own, and those of its pool, events and telemetry."""
        self._report.add(stored["question"], stored["pool"], stored["events"])
        self._exit_check.add(stored["question"], stored["pool"])
        self._tables["question"].append(stored["question"])
        for name in ("pool", "events", "telemetry"):
            self._tables[name] += stored[name]
        if len(self._tables["question"]) == _WRITE_BATCH:
            self._flush()

    def finish(self) -> dict[str, Any]:
        """Write the remaining rows and the report; return the metrics. Raises StageFailed for an unusable result."""
        self._flush()
        if not self._context.accept_failures:
            self._exit_check.check(self._context.address)
        self._context.add_file(POOLS.kind, "report.md", self._report.markdown().encode())
        metrics = self._report.metrics()
        for sentence in pool_warnings(metrics):
            _log.warning("%s: %s", self._context.address, sentence)
        return {**metrics, **self._context.work_result.facts.get("sandbox", {})}

    def _flush(self) -> None:
        self._context.write(POOLS.kind, self._tables["pool"])
        self._context.write(POOL_EVENTS.kind, self._tables["events"])
        self._context.write(POOL_QUESTIONS.kind, self._tables["question"])
        self._context.write_telemetry(ROLLOUT_TELEMETRY.kind, self._tables["telemetry"])
        for rows in self._tables.values():
            rows.clear()
