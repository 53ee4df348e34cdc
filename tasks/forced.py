"""A forced run as a whole: what it still has to make again, also after it was cut off.

While `run --force` is at work, `runs/<run>/forced.json` says which attempt each instance's result was of when it began.
An instance whose result is of a later one has been made again; the next `run --force` goes on behind it, unless a plain
run of the whole flow has been through meanwhile: what that one left is the beginning of something new. Runs of a part
of the flow say nothing of the rest of it. What was imported is not made again by a forced run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

from pydantic import BaseModel, ConfigDict, ValidationError

from treadle.core.execute import equal_result
from treadle.core.runs import Run, utc_now
from treadle.core.stage import Address, Instance
from treadle.tasks.imported import imported_from

_FILE = "forced.json"


class _Begun(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    format: int = 1
    begun_at: str
    """UTC, ISO 8601."""
    attempts: Mapping[str, int]
    """Address -> attempt of its result when the forced run began; 0 where there was none."""


@contextmanager
def forced_run(
    run: Run, addresses: Iterable[Address], *, force: bool, is_part: bool = False
) -> Iterator[frozenset[Address]]:
    """Make these instances of a flow again: yields those that are still to be made, of a forced run that was cut off
    the rest.

    At the end of the block the forced run is over; where the block is left by an exception it can be continued. Without
    `force` nothing is made again, and at the end of the block a forced run that was cut off before is over as well.
    `is_part`: these are not all of the flow; then what a forced run has still to make of the others remains.
    """
    wanted = [address for address in addresses if not imported_from(address, run)] if force else []
    left = frozenset[Address]()
    if wanted:
        begun = _load(run)
        unfinished = still_to_make(run, wanted)
        left = unfinished or frozenset(wanted)
        now = {str(address): _attempt(run, address) for address in wanted}
        known = begun.attempts if begun is not None else {}
        # Who begins anew what has been made again already counts from here on.
        attempts = {**known, **now} if unfinished is None else {**now, **known}
        if begun is None or attempts != known:
            begun = _Begun(begun_at=begun.begun_at if begun is not None else utc_now(), attempts=attempts)
            run.storage.put(run.key(_FILE), begun.model_dump_json(indent=2).encode())
    yield left
    begun = _load(run)
    goes_on = is_part and begun is not None and any(not _is_taken_over(text, run) for text in _unmade(run, begun))
    if not goes_on and run.storage.exists(run.key(_FILE)):
        run.storage.delete(run.key(_FILE))


def is_forced(instance: Instance, run: Run, again: Collection[Address]) -> bool:
    """Whether a forced run makes an instance again; not one that an earlier iteration has made again the same way.

    Raises RunError for a missing input.
    """
    if instance.address not in again:
        return False
    record = run.record(instance.address)
    has_own = record is not None and not record.same_as
    return has_own or equal_result(instance, run) is None


def still_to_make(run: Run, addresses: Iterable[Address]) -> frozenset[Address] | None:
    """What a forced run that was cut off has not made again of these; None where there is no such run, or nothing left.

    Without what was imported.
    """
    begun = _load(run)
    if begun is None:
        return None
    made = begun.attempts.keys() - _unmade(run, begun)
    left = (address for address in addresses if str(address) not in made and not imported_from(address, run))
    return frozenset(left) or None


def _unmade(run: Run, begun: _Begun) -> set[str]:
    """Of the instances of a forced run those that it has not made again."""
    return {text for text, attempt in begun.attempts.items() if _attempt(run, Address.parse(text)) <= attempt}


def _is_taken_over(text: str, run: Run) -> bool:
    record = run.record(Address.parse(text))
    return record is not None and bool(record.same_as)


def _attempt(run: Run, address: Address) -> int:
    record = run.record(address)
    return record.attempt if record else 0


def _load(run: Run) -> _Begun | None:
    content = run.storage.get(run.key(_FILE))
    try:
        return None if content is None else _Begun.model_validate_json(content)
    except ValidationError:
        return None  # Written by another version: then everything is made again.
