"""Where a result that an iteration took over from an earlier one is to be looked for.

It is shown and counted once: at the first iteration that has it. What it was taken over from may have been made anew
since; then it is shown where it still is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace

from treadle.core.errors import RunError
from treadle.core.records import StageRecord
from treadle.core.stage import Address


def shown_at(record: StageRecord, record_of: Callable[[Address], StageRecord | None]) -> str:
    """Address of the first earlier iteration that has now what this one took over; empty where none has it, and for a
    result that was made here.

    `record_of`: the result of an instance; where that cannot be read (RunError) there is nothing to show.
    """
    if not record.same_as:
        return ""
    address = Address.parse(record.address)
    for number in range(1, address.iteration):
        with suppress(RunError):
            earlier = record_of(replace(address, iteration=number))
            if earlier is not None and earlier.outputs == record.outputs:
                return earlier.address
    return ""


def own_results(records: Iterable[StageRecord]) -> list[StageRecord]:
    """These without those that are shown at an earlier iteration; `records` are all of a run that can be read."""
    known = {record.address: record for record in records}
    return [record for record in known.values() if not shown_at(record, lambda address: known.get(str(address)))]
