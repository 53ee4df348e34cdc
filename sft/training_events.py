"""What a fine-tuning tells of its steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from treadle.core.engines.event_log import EventLog


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


class TrainingEvents(EventLog[TrainingStep]):
    """The events of a fine-tuning."""

    def read_step(self, event: dict[str, Any]) -> TrainingStep:
        """See `EventLog.read_step`."""
        return TrainingStep(**{name: event[name] for name in TrainingStep.__slots__})
