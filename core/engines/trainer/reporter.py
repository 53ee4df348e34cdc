"""Report the steps of a trainer of transformers as events."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from treadle.core.engines.errors import Diverged, NothingLearned
from treadle.core.engines.events import EventFile, mark_complete
from treadle.core.engines.weights.change import MIN_WEIGHT_CHANGE, WeightChange

_HEARTBEAT_S = 5.0


class TrainerReporter(TrainerCallback):  # type: ignore[misc]
    """A callback that writes the events `begin`, `heartbeat`, `step`, `saved` (once per saved state) and `end`.

    A trainer with further figures overrides `figures`, which are added to the event `step`.
    """

    def __init__(self, events: EventFile) -> None:
        self._events = events
        self._began = self._last_heartbeat = time.monotonic()
        self._first_step = 0
        self._weight_change: WeightChange | None = None

    def figures(self, logs: Mapping[str, Any]) -> dict[str, Any]:
        """Return further figures of a step, from the values that the trainer logged."""
        return {}

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Keep a sample of the weights, to detect later whether they moved."""
        self._began = self._last_heartbeat = time.monotonic()
        self._first_step = state.global_step
        self._weight_change = WeightChange(model)
        if state.is_world_process_zero:
            self._events.write(
                "begin",
                resumed_step=state.global_step,
                num_steps=state.max_steps,
                num_epochs=args.num_train_epochs,
                num_trained_parameters=self._weight_change.num_parameters,
                num_processes=args.world_size,
                device=str(args.device),
            )

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write a heartbeat every few seconds."""
        if state.is_world_process_zero and time.monotonic() - self._last_heartbeat > _HEARTBEAT_S:
            self._last_heartbeat = time.monotonic()
            self._events.write("heartbeat", step=state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Write a heartbeat, and log the last step even if it is not a multiple of `logging_steps`."""
        self.on_substep_end(args, state, control)
        if state.global_step >= state.max_steps:
            control.should_log = True
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Write the event `step` with its loss; raise Diverged if the loss or the gradient is not finite."""
        logs = logs or {}
        if "loss" not in logs:
            return
        loss, norm = float(logs["loss"]), logs.get("grad_norm")
        norm = None if norm is None else float(norm)
        finite = math.isfinite(loss) and (norm is None or math.isfinite(norm))
        if state.is_world_process_zero and finite:
            self._events.write(
                "step",
                step=state.global_step,
                num_steps=state.max_steps,
                loss=loss,
                learning_rate=float(logs.get("learning_rate", 0.0)),
                grad_norm=norm,
                epoch=float(logs.get("epoch", state.epoch or 0.0)),
                seconds=time.monotonic() - self._began,
                **self.figures(logs),
            )
        # In fp16, the scaler skips a single overflow.
        if not (math.isfinite(loss) and (finite or args.fp16)):
            raise Diverged(f"loss {loss}, gradient norm {norm} at step {state.global_step}")

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Mark a state as complete once every process has written its part; raise Diverged if a weight is not finite.

        The check is needed here, because a loss may be logged only after a state is saved.
        """
        if self._weight_change is not None and not self._weight_change.is_finite():
            raise Diverged(f"weights are not finite at step {state.global_step}")
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.barrier()
        if state.is_world_process_zero:
            mark_complete(Path(args.output_dir) / f"checkpoint-{state.global_step}")
            self._events.write("saved", step=state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the event `end`; raise NothingLearned if the weights have not changed."""
        nothing_learned = self._weight_change is not None and self._weight_change.length() <= MIN_WEIGHT_CHANGE
        if state.global_step > self._first_step and nothing_learned:
            raise NothingLearned(f"the weights did not change in {state.global_step - self._first_step} steps")
        if state.is_world_process_zero:
            self._events.write("end", step=state.global_step, epoch=state.epoch, seconds=time.monotonic() - self._began)
