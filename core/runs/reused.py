"""Resolve a reused result to the iteration that produced it.

A result is shown and counted once, at the first iteration that has it. If the instance that it was reused from has
since been rerun, the result is shown at the first instance that still has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace

from treadle.core.errors import RunError
from treadle.core.runs.address import Address
from treadle.core.runs.records import StageRecord
from treadle.core.runs.stage import Instance


def result_origin(record: StageRecord, record_of: Callable[[Address], StageRecord | None]) -> str:
    """Return the address of the first earlier iteration that has this reused result now.

    Returns "" if none has it, or if the result was made here. `record_of` returns the current result of an instance; an
    instance whose record cannot be read (RunError) is skipped.
    """
    if not record.reused_from:
        return ""
    address = Address.parse(record.address)
    for number in range(1, address.iteration):
        with suppress(RunError):
            earlier = record_of(replace(address, iteration=number))
            if earlier is not None and earlier.outputs == record.outputs:
                return earlier.address
    return ""


def own_results(records: Iterable[StageRecord]) -> list[StageRecord]:
    """Return the records that are not shown at an earlier iteration; `records` are all readable ones of a run."""
    known = {record.address: record for record in records}
    return [record for record in known.values() if not result_origin(record, lambda address: known.get(str(address)))]


def counterparts(instance: Instance) -> list[Address]:
    """Return the instances of earlier iterations whose results can be reused for this one."""
    if instance.stage.depends_on_address:
        return []
    return [replace(instance.address, iteration=number) for number in range(1, instance.address.iteration)]
