"""Track which instances a forced run still has to run again, also after it was interrupted; protect imported results.

While `run --force` is running, `runs/<run>/forced.json` records the attempt that each instance's result had when it
began. An instance whose result has a later attempt has already been run again, and the next `run --force` continues
after it. A plain run of the whole flow in between ends the forced run: the next `run --force` starts from the
beginning. Runs of a part of the flow leave the state of the other instances unchanged. A forced run does not replace
imported results: a run replaces one only if told to by its address.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

from pydantic import BaseModel, ConfigDict, ValidationError

from treadle.core.runs.address import Address
from treadle.core.runs.execute import equal_result
from treadle.core.runs.run import Run, utc_now
from treadle.core.runs.stage import Instance

_FILE = "forced.json"


class _ForcedRun(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    format: int = 1
    started_at: str
    """Start of the forced run, UTC, ISO 8601."""
    attempts: Mapping[str, int]
    """Address -> attempt of its result when the forced run began; 0 if it had no result."""


@contextmanager
def forced_run(
    run: Run, addresses: Iterable[Address], *, force: bool, is_part: bool = False
) -> Iterator[frozenset[Address]]:
    """Yield the instances that a forced run still has to run again; after an interruption only the remaining ones.

    The forced run is over at the end of the block. If an exception leaves the block, it can be continued later. Without
    `force`, yields an empty set, and the end of the block also ends a forced run that was interrupted before.
    `is_part`: the addresses are not the whole flow, so pending instances outside it stay pending.
    """
    wanted = [address for address in addresses if not imported_from(address, run)] if force else []
    left = frozenset[Address]()
    if wanted:
        begun = _load(run)
        unfinished = pending_forced(run, wanted)
        left = unfinished or frozenset(wanted)
        now = {str(address): _attempt(run, address) for address in wanted}
        known = begun.attempts if begun is not None else {}
        # If all of them were already run again, this is a new forced run: it starts from their current attempts.
        attempts = {**known, **now} if unfinished is None else {**now, **known}
        if begun is None or attempts != known:
            begun = _ForcedRun(started_at=begun.started_at if begun is not None else utc_now(), attempts=attempts)
            run.storage.put(run.key(_FILE), begun.model_dump_json(indent=2).encode())
    yield left
    begun = _load(run)
    # A result reused from an earlier iteration follows its origin, so it is not pending.
    is_unfinished = is_part and begun is not None and any(not _is_reused(text, run) for text in _not_rerun(run, begun))
    if not is_unfinished and run.storage.exists(run.key(_FILE)):
        run.storage.delete(run.key(_FILE))


def is_forced(instance: Instance, run: Run, again: Collection[Address]) -> bool:
    """Return whether a forced run runs this instance again.

    False if an earlier iteration has an equal result, unless the instance has a result of its own. Raises RunError for
    a missing input.
    """
    if instance.address not in again:
        return False
    record = run.record(instance.address)
    has_own = record is not None and not record.reused_from
    return has_own or equal_result(instance, run) is None


def pending_forced(run: Run, addresses: Iterable[Address]) -> frozenset[Address] | None:
    """Return which of these instances an interrupted forced run has not run again yet.

    Imported results are excluded. Returns None if there is no such run or nothing is left.
    """
    begun = _load(run)
    if begun is None:
        return None
    made = begun.attempts.keys() - _not_rerun(run, begun)
    left = (address for address in addresses if str(address) not in made and not imported_from(address, run))
    return frozenset(left) or None


def _not_rerun(run: Run, begun: _ForcedRun) -> set[str]:
    """Return the instances of a forced run that it has not run again yet."""
    return {text for text, attempt in begun.attempts.items() if _attempt(run, Address.parse(text)) <= attempt}


def _is_reused(text: str, run: Run) -> bool:
    record = run.record(Address.parse(text))
    return record is not None and bool(record.reused_from)


def _attempt(run: Run, address: Address) -> int:
    record = run.record(address)
    return record.attempt if record else 0


def _load(run: Run) -> _ForcedRun | None:
    content = run.storage.get(run.key(_FILE))
    try:
        return None if content is None else _ForcedRun.model_validate_json(content)
    except ValidationError:
        return None  # Written by another version: run everything again.


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
