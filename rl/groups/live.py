"""Report the status of a training's process: rollouts of the current step by state, and the model servers in use.

The process writes a file at fixed intervals, so that a stall is visible although nothing finishes; the stage reads it.
The file is for display only, and no part of any result.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Self

from treadle.core.llm.types import EndpointState
from treadle.core.untrusted.concealment import exits_as_errors

_log = logging.getLogger(__name__)

LIVE = "live"
"""Name of the folder, inside the folder of a training, with the status files of its processes."""
WRITE_INTERVAL_S = 5.0
Servers = Sequence[tuple[str, EndpointState]]
"""State of each model server, with the name of its model."""


@dataclass(frozen=True, slots=True)
class RolloutCounts:
    """Numbers of rollouts by state, and the number of tokens that the policy has written in them."""

    queued: int = 0
    running: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    tokens: int = 0

    def __add__(self, other: RolloutCounts) -> RolloutCounts:
        mine, others = asdict(self), asdict(other)
        return RolloutCounts(**{name: mine[name] + others[name] for name in mine})

    @property
    def num_open(self) -> int:
        """Number of rollouts that have not ended."""
        return self.queued + self.running

    @property
    def num_ended(self) -> int:
        """Number of rollouts that have ended in any way."""
        return self.finished + self.failed + self.cancelled

    def ended(self) -> RolloutCounts:
        """Return the numbers at the end of a group, in which rollouts that are still queued or running are failed."""
        return replace(self, queued=0, running=0, failed=self.failed + self.num_open)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStatus:
    """Status of a process of a training at one moment.

    Attributes:
        step: Number of the step, from 1; 0 in a validation.
        rollouts: Rollouts of the step.
        elapsed_s: Seconds since the rollouts of the step began.
        usual_s: Seconds that the rollouts of the previous step took; None in the first step.
        tokens: Number of tokens that the policy has written since the process began.
        servers: Name of the model and state of each model server that the process uses.
    """

    step: int = 0
    rollouts: RolloutCounts = field(default_factory=RolloutCounts)
    elapsed_s: float = 0.0
    usual_s: float | None = None
    tokens: int = 0
    servers: tuple[tuple[str, EndpointState], ...] = ()

    @property
    def left_s(self) -> float | None:
        """Estimated seconds until the rollouts end; None if there is no estimate, or if they have ended.

        The estimate uses the time of the previous step. In the first step, or once this time has passed, it uses the
        share of rollouts that have ended.
        """
        counts = self.rollouts
        if not counts.num_open:
            return None
        if self.usual_s is not None and self.usual_s > self.elapsed_s:
            return self.usual_s - self.elapsed_s
        return self.elapsed_s * counts.num_open / counts.num_ended if counts.num_ended else None


class LiveRollouts:
    """The rollouts of the current step of this process; as a context manager, it writes their states to a folder.

    Several threads may use it at once; a state that is read during a change may be slightly out of date.
    """

    def __init__(self, folder: Path | None = None, servers: Callable[[], Servers] = tuple) -> None:
        """Write to a file in `folder`, or not at all if it is None; `servers` returns the states of model servers."""
        self._path = folder / f"{uuid.uuid4().hex}.json" if folder is not None else None
        self._servers = servers
        self._groups: dict[str, Callable[[], RolloutCounts]] = {}
        self._step: int | None = None
        self._began_s = time.monotonic()
        self._took_s: float | None = None
        self._usual_s: float | None = None
        self._earlier_tokens = 0
        self._ended = threading.Event()
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._write_repeatedly, name="live status", daemon=True)

    def __enter__(self) -> Self:
        if self._path is not None:
            self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self.write()

    def begin(self, step: int) -> None:
        """Begin the rollouts of a step, or continue them; step 0 is a validation."""
        if step == self._step:
            return
        self._earlier_tokens += self._counts().tokens
        if self._step:  # Not after a validation, whose rollouts take a different time.
            self._usual_s = self._took_s
        self._groups, self._step, self._took_s = {}, step, None
        self._began_s = time.monotonic()

    @contextlib.contextmanager
    def group(self, group_id: str, counts: Callable[[], RolloutCounts]) -> Iterator[None]:
        """Show a group while it is rolled out, then its final numbers; another attempt at the group replaces them."""
        if (earlier := self._groups.get(group_id)) is not None:
            self._earlier_tokens += earlier().tokens
        self._groups[group_id] = counts
        try:
            yield
        finally:
            # Only the numbers are kept, so that the rollouts can be freed.
            last = counts().ended()
            self._groups[group_id] = lambda: last
            self._took_s = time.monotonic() - self._began_s

    def status(self) -> ProcessStatus:
        """Return the current status of this process."""
        counts = self._counts()
        with exits_as_errors():  # Rules of users are asked.
            servers = tuple(self._servers())
        return ProcessStatus(
            step=self._step or 0,
            rollouts=counts,
            elapsed_s=time.monotonic() - self._began_s,
            usual_s=self._usual_s,
            tokens=self._earlier_tokens + counts.tokens,
            servers=servers,
        )

    def write(self) -> None:
        """Replace the file. A failure is logged: the training does not depend on it."""
        if self._path is None:
            return
        try:
            with self._writing:  # else an earlier state could replace a later one
                self._path.parent.mkdir(parents=True, exist_ok=True)
                new = self._path.with_suffix(".new")
                new.write_text(json.dumps(asdict(self.status())), encoding="utf-8")
                new.replace(self._path)
        except Exception as error:  # noqa: BLE001 - rules of users are asked for their servers
            _log.debug("the status of the training cannot be written: %s", error)

    def _write_repeatedly(self) -> None:
        while not self._ended.is_set():
            self.write()
            self._ended.wait(WRITE_INTERVAL_S)

    def _counts(self) -> RolloutCounts:
        return sum((counts() for counts in list(self._groups.values())), RolloutCounts())
