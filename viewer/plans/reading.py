"""Read the calls of planning agents and their times from the tables of a run."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import ValidationError

from treadle.core.errors import ArtifactError
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.store.roots import Storage
from treadle.core.store.text_arrays import texts
from treadle.environments.mixture import environments_of
from treadle.environments.planning.figures import batches
from treadle.environments.planning.settings import PlanningSettings
from treadle.environments.rollouts.tables import ROLLOUT_TELEMETRY
from treadle.viewer.plans.chart import PlanChart, plan_chart

_COLUMNS = ("rollout_key", "call_times")

TrajectoryRow = tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]
"""Segments and calls of a stored trajectory."""


def planning_settings(record: StageRecord, environment: str) -> PlanningSettings | None:
    """Return the settings of an environment of type `planning`; None for other types."""
    tables = environments_of(record.settings if isinstance(record.settings, Mapping) else {})
    table = tables.get(environment)
    if not isinstance(table, Mapping) or table.get("type") != "planning":
        return None
    try:
        return PlanningSettings.model_validate(table)
    except ValidationError:
        return None  # stored by another version


def times_of(storage: Storage, record: StageRecord, key: str) -> list[dict[str, Any]]:
    """Return the times of the calls of a rollout; empty if the record has none. Raises ArtifactError."""
    file = record.telemetry.get(ROLLOUT_TELEMETRY.kind)
    if file is None:
        return []
    table = _times(storage, file)
    places = pc.indices_nonzero(pc.equal(table["rollout_key"], texts([key])[0]))
    found: list[dict[str, Any]] = table["call_times"][places[0].as_py()].as_py() if len(places) else []
    return found


@lru_cache(maxsize=4)
def _times(storage: Storage, file: str) -> pa.Table:
    content = storage.get(file)
    if content is None:
        return pa.table({"rollout_key": pa.nulls(0, pa.string()), "call_times": pa.nulls(0)})
    try:
        return pq.read_table(io.BytesIO(content), columns=list(_COLUMNS))
    except (pa.ArrowInvalid, OSError) as error:
        raise ArtifactError(f"{file} cannot be read: {error}") from error


def chart_of(run: Run, instance: str, environment: str, key: str, row: TrajectoryRow) -> PlanChart | None:
    """Return the chart of a rollout of a planning agent; None for other environments. Raises ArtifactError."""
    record = next((one for one in run.records() if one.address == instance), None)
    settings = None if record is None else planning_settings(record, environment)
    if record is None or settings is None:
        return None
    found = batches(*row, settings.turn_dialect)
    return plan_chart(found, times_of(run.storage, record, key)) if found else None
