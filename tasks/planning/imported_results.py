"""Protect results that were imported from other programs' files: a run replaces one only if told to by its address."""

from __future__ import annotations

from treadle.core.runs.address import Address
from treadle.core.runs.run import Run


def imported_from(address: Address, run: Run) -> str | None:
    """Return the name of the file that the current result was imported from; None if there is none."""
    record = run.record(address)
    return record.imported_from if record is not None else None


def replaces_import(address: Address, run: Run, action: str) -> bool:
    """Return whether an action from `planned_action` would replace an imported result.

    False if the result was reused from an earlier iteration and another result of an earlier iteration replaces it.
    """
    record = run.record(address)
    if record is None or record.imported_from is None:
        return False
    return action == "run" or (action == "take over" and not record.reused_from)


def refusal(address: Address, run: Run, why: str) -> str:
    """Return the message for an imported result that would have to be replaced."""
    return (
        f"was imported from {imported_from(address, run)}, and {why}: "
        f"import it again, or replace it with `treadle stage {address} --force`"
    )
