"""Results that were read from files of other programs: no run makes them anew unless that is asked for by name."""

from __future__ import annotations

from treadle.core.runs import Run
from treadle.core.stage import Address


def imported_from(address: Address, run: Run) -> str | None:
    """Name of the file that the result in force was imported from; None where the stage made it, or there is none."""
    record = run.record(address)
    return record.imported_from if record is not None else None


def replaces_import(address: Address, run: Run, action: str) -> bool:
    """Whether what `state_of` says would come of an instance puts something else in the place of an import.

    Not where the result is that of an earlier iteration, whose import is replaced by another one.
    """
    record = run.record(address)
    if record is None or record.imported_from is None:
        return False
    return action == "run" or (action == "take over" and not record.same_as)


def refusal(address: Address, run: Run, why: str) -> str:
    """What to say of an import that would have to be made anew."""
    return (
        f"was imported from {imported_from(address, run)}, and {why}: "
        f"import it again, or make it with `treadle stage {address} --force`"
    )
