"""Retry only those rows of a result that ended in some status, such as `timeout`.

All other rows are reused like the finished jobs of `core.runs.earlier_jobs`: they cost no requests and stay unchanged.
The earlier result stays current until the new one is complete.
"""

from __future__ import annotations

from collections.abc import Set

from treadle.core.config import digest_json
from treadle.core.errors import RunError
from treadle.core.runs.records import StageRecord
from treadle.core.runs.stage import Instance


def num_with_status(record: StageRecord, statuses: Set[str]) -> int:
    """Return how many rows of a result ended in one of these statuses."""
    return sum(int(record.metrics.get(f"status_{status}", 0)) for status in statuses)


def check_retry(instance: Instance, record: StageRecord | None, fingerprint: str, statuses: Set[str]) -> StageRecord:
    """Return the result whose rows should be retried; raise RunError if they cannot be."""
    address, jobs = instance.address, instance.stage.jobs
    if jobs is None or not jobs.statuses:
        raise RunError(f"{address}: stage {instance.stage.name} does not support --retry")
    if unknown := sorted(statuses - jobs.statuses):
        raise RunError(
            f"{address} has no status {', '.join(unknown)}; --retry takes {', '.join(sorted(jobs.statuses))}"
        )
    if record is None or record.fingerprint != fingerprint:
        raise RunError(f"{address} has no result for these inputs and settings; run it first without --retry")
    if record.imported_from is not None:
        raise RunError(f"{address} was imported from {record.imported_from}; its rows cannot be retried")
    return record


def retry_journal(record: StageRecord, statuses: Set[str]) -> str:
    """Return the name of the journal for retrying rows of this result."""
    return digest_json(["retry", record.fingerprint, record.attempt, record.token, sorted(statuses)])
