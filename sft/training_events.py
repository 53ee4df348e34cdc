"""What a training told so far, read from the engine's JSON lines: over all attempts, without what was done twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """A logged step."""

    step: int
    """Updates so far, those of earlier attempts included."""
    num_steps: int
    """Updates of the whole training."""
    loss: float
    """Mean per target token over the steps since the line before."""
    learning_rate: float
    grad_norm: float | None
    """Norm of the gradient before it is clipped."""
    epoch: float
    seconds: float
    """Time in training so far, over all attempts, without what was lost with them."""
    eta_s: float | None
    """Estimate of what is left, from the mean step of this attempt."""
    memory_bytes: int
    """Most memory so far: reserved on the first GPU, or of the process on a CPU."""


class TrainingEvents:
    """Follows the file of events; `new` returns what was added since the last call and keeps the state up to date."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._earlier_s = 0.0
        self.steps: list[TrainingStep] = []
        """Logged steps in order, each once."""
        self.begin: dict[str, Any] | None = None
        """The newest `begin`."""
        self.last: dict[str, dict[str, Any]] = {}
        """The newest event of each kind."""

    def new(self) -> Iterator[dict[str, Any]]:
        """Whole lines that were added; what is no event (a line torn by a kill) is passed over."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        for line in data[:whole].splitlines():
            try:
                event = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue
            self._take(event)
            yield event

    def mend(self) -> None:
        """End a torn last line, so that the next event stands on one of its own."""
        if self._path.exists() and not self._path.read_bytes().endswith(b"\n"):
            with self._path.open("ab") as file:
                file.write(b"\n")

    def _take(self, event: dict[str, Any]) -> None:
        self.last[event["event"]] = event
        if event["event"] == "begin":
            self.begin = event
            self.steps = [step for step in self.steps if step.step <= event["resumed_step"]]
            self._earlier_s = self.steps[-1].seconds if self.steps else 0.0
        elif event["event"] == "step":
            step = TrainingStep(**{name: event[name] for name in TrainingStep.__slots__})
            self.steps.append(replace(step, seconds=step.seconds + self._earlier_s))
