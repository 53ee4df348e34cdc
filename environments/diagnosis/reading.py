"""Find what looks wrong with the stored rollouts or scores of a record: for stages, reports, viewer and JSON."""

from __future__ import annotations

from collections.abc import Iterable

from treadle.core.errors import TreadleError
from treadle.core.runs.records import StageRecord
from treadle.core.runs.reused import own_results
from treadle.core.runs.run import Run
from treadle.environments.diagnosis.diagnosis import Diagnosis
from treadle.environments.diagnosis.rollouts import rollout_diagnoses
from treadle.environments.diagnosis.scores import score_diagnoses

_READERS = {"rollouts": rollout_diagnoses, "scores": score_diagnoses}
"""Kind of table -> reader of its problems."""


def diagnoses_of(record: StageRecord, run: Run) -> list[Diagnosis]:
    """Return the problems of a record's rollouts or scores; empty if there are none or its tables cannot be read."""
    try:
        return [one for kind, read in _READERS.items() if kind in record.outputs for one in read(record, run)]
    except (TreadleError, KeyError):
        return []  # The tables were deleted, or have another version: there is nothing to report.


def all_diagnoses(records: Iterable[StageRecord], run: Run) -> list[Diagnosis]:
    """Return the problems of all records that are not reused from an earlier iteration, in the order of the records."""
    return [one for record in own_results(records) for one in diagnoses_of(record, run)]
