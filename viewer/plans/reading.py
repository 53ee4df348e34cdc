"""Read the calls of planning agents and their times from the tables of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow.compute as pc

from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.store.roots import Storage
from treadle.core.store.text_arrays import texts
from treadle.environments.planning.figures import batches
from treadle.environments.planning.stored import stored_settings
from treadle.environments.rollouts.tables import ROLLOUT_TELEMETRY
from treadle.viewer.plans.chart import PlanChart, plan_chart
from treadle.viewer.tables import read_log

_COLUMNS = ("rollout_key", "call_times")

TrajectoryRow = tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]
"""Segments and calls of a stored trajectory."""


def times_of(storage: Storage, record: StageRecord, key: str) -> list[dict[str, Any]]:
    """Return start and duration of each call of a rollout; empty without stored times. Raises ArtifactError."""
    log = read_log(storage, record, ROLLOUT_TELEMETRY.kind, _COLUMNS)
    if log is None:
        return []
    places = pc.indices_nonzero(pc.equal(log["rollout_key"], texts([key])[0]))
    found: list[dict[str, Any]] = log["call_times"][places[0].as_py()].as_py() if len(places) else []
    return found


def chart_of(run: Run, instance: str, environment: str, key: str, row: TrajectoryRow) -> PlanChart | None:
    """Return the chart of a rollout of a planning agent; None for other environments. Raises ArtifactError."""
    record = next((one for one in run.records() if one.address == instance), None)
    settings = None if record is None else stored_settings(record.settings, environment)
    if record is None or settings is None:
        return None
    found = batches(*row, settings.turn_dialect)
    return plan_chart(found, times_of(run.storage, record, key)) if found else None
