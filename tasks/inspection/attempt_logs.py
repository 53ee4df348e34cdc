"""Read the logs of attempts, and follow the log of a running attempt."""

from __future__ import annotations

import io
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from treadle.core.errors import DataError, closest
from treadle.core.runs.address import Address
from treadle.core.runs.run import Run

_POLL_S = 0.5
_BLOCK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class AttemptLog:
    """Log of one attempt at an instance."""

    run: Run
    address: Address
    number: int

    @property
    def key(self) -> str:
        """Key of the file below the root."""
        return self.run.attempt_key(self.address, self.number, "log.txt")

    def lines(self, num_last: int, *, follow: bool = False) -> Iterator[str]:
        """Yield the last lines; with `follow` also those that are written until the attempt ends.

        Raises DataError if there is no log, for example because it is on another machine until the attempt ends.
        """
        with self._open() as file:
            yield from (line.decode("utf-8", "replace") for line in _last_lines(file, num_last))
            part = b""
            while follow:
                # Asked before reading, so that the last read covers everything that was written until the end.
                is_running = self.run.status(self.address).state == "running"
                *whole, part = (part + file.read()).split(b"\n")
                yield from (line.decode("utf-8", "replace") for line in whole)
                if not is_running:
                    break
                time.sleep(_POLL_S)
            if part:
                yield part.decode("utf-8", "replace")

    def _open(self) -> BinaryIO:
        path = self.run.storage.directory(self.key)
        if path.is_file():
            return path.open("rb")
        if (content := self.run.storage.get(self.key)) is not None:
            return io.BytesIO(content)
        raise DataError(
            f"there is no log of attempt {self.number} at {self.address} in {self.run.storage.location(self.key)}; "
            "while an attempt runs, it is on the attempt's machine"
        )


def attempt_log(run: Run, address: Address | None = None, number: int | None = None) -> AttemptLog:
    """Return the log of an attempt; by default the newest one of the instance whose attempt started last.

    Raises DataError, naming the existing attempts, for an instance or a number without an attempt.
    """
    statuses = {one.address: one for one in run.statuses() if one.num_attempts}
    if not statuses:
        raise DataError(f"run {run.run_id} has no attempt yet, so there are no logs")
    if address is None:
        newest = max(statuses.values(), key=lambda one: one.started_at or "")
        address = Address.parse(newest.address)
    elif str(address) not in statuses:
        raise DataError(
            f"run {run.run_id} has no attempt at {address}{closest(str(address), statuses)}; attempts were made at "
            f"{', '.join(statuses)}"
        )
    numbers = [attempt.number for attempt in run.attempts(address)]
    if number is not None and number not in numbers:
        raise DataError(f"{address} has no attempt {number}; there are {', '.join(map(str, numbers))}")
    return AttemptLog(run, address, number if number is not None else numbers[-1])


def _last_lines(file: BinaryIO, count: int) -> list[bytes]:
    """Return the last lines and leave the file at its end, or at the beginning of a line that is not complete yet."""
    size = file.seek(0, io.SEEK_END)
    start, blocks, breaks = size, deque[bytes](), 0
    while start > 0 and breaks <= count:
        start = max(0, start - _BLOCK_BYTES)
        file.seek(start)
        blocks.appendleft(file.read(min(_BLOCK_BYTES, size - start - sum(map(len, blocks)))))
        breaks += blocks[0].count(b"\n")
    *whole, rest = b"".join(blocks).split(b"\n")
    file.seek(size - len(rest))
    return whole[len(whole) - min(count, len(whole)) :]
