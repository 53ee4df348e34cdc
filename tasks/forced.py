"""A forced run as a whole: what it still has to make again, also after it was cut off.

While `run --force` is at work, `runs/<run>/forced.json` says which attempt each instance's result was of when it began.
An instance whose result is of a later one has been made again; the next `run --force` goes on behind it, unless a plain
run has been through meanwhile: what that one left is the beginning of something new.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from pydantic import BaseModel, ConfigDict, ValidationError

from treadle.core.runs import Run, utc_now
from treadle.core.stage import Address

_FILE = "forced.json"


class _Begun(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    format: int = 1
    begun_at: str
    """UTC, ISO 8601."""
    attempts: Mapping[str, int]
    """Address -> attempt of its result when the forced run began; 0 where there was none."""


@contextmanager
def forced_run(run: Run, addresses: Iterable[Address]) -> Iterator[frozenset[Address]]:
    """Make all of these again: yields those that are still to be made, of a forced run that was cut off the rest.

    At the end of the block the forced run is over; where the block is left by an exception it can be continued. Without
    addresses nothing is forced, and at the end of the block a forced run that was cut off before is over as well.
    """
    wanted = list(addresses)
    left = still_to_make(run, wanted) if wanted else frozenset()
    if left is None:
        begun = _Begun(begun_at=utc_now(), attempts={str(address): _attempt(run, address) for address in wanted})
        run.storage.put(run.key(_FILE), begun.model_dump_json(indent=2).encode())
        left = frozenset(wanted)
    yield left
    if wanted or run.storage.exists(run.key(_FILE)):
        run.storage.delete(run.key(_FILE))


def still_to_make(run: Run, addresses: Iterable[Address]) -> frozenset[Address] | None:
    """What a forced run that was cut off has not made again; None where there is no such run, or nothing left."""
    begun = _load(run)
    if begun is None:
        return None
    made = {text for text, attempt in begun.attempts.items() if _attempt(run, Address.parse(text)) > attempt}
    return frozenset(address for address in addresses if str(address) not in made) or None


def _attempt(run: Run, address: Address) -> int:
    record = run.record(address)
    return record.attempt if record else 0


def _load(run: Run) -> _Begun | None:
    content = run.storage.get(run.key(_FILE))
    try:
        return None if content is None else _Begun.model_validate_json(content)
    except ValidationError:
        return None  # Written by another version: then everything is made again.
