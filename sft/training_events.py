"""Define the events that a fine-tuning reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from treadle.core.engines.event_log import EventLog


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """A logged step."""

    step: int
    """Number of updates so far, earlier attempts included."""
    num_steps: int
    """Number of updates of the whole training."""
    loss: float
    """Mean loss per target token since the previous logged step."""
    learning_rate: float
    grad_norm: float | None
    """Norm of the gradient before clipping."""
    epoch: float
    seconds: float
    """Seconds in training so far, over all attempts, without work that was lost with them."""


class TrainingEvents(EventLog[TrainingStep]):
    """The events of a fine-tuning."""

    def read_step(self, event: dict[str, Any]) -> TrainingStep:
        """See `EventLog.read_step`."""
        return TrainingStep(**{name: event[name] for name in TrainingStep.__slots__})
