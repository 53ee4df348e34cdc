"""Write the events of a training with TRL. TRL counts updates; events count the plan's steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from treadle.core.engines.errors import Diverged, NothingLearned
from treadle.core.engines.events import EventFile, mark_complete
from treadle.core.engines.weights.change import MIN_WEIGHT_CHANGE, WeightChange, had_no_gradient
from treadle.rl.training.plan import RlPlan

_HEARTBEAT_S = 5.0


class TrlReporter(TrainerCallback):  # type: ignore[misc]
    """Callback that writes the events of a training.

    The events are `begin`, `heartbeat`, `step`, `validation`, `saved`, `end`, and `live_greedy` for each state. Only
    the first of several processes writes.
    """

    def __init__(self, plan: RlPlan, events: EventFile, *, is_first: bool) -> None:
        self._plan = plan
        self._events = events
        self._is_first = is_first
        self._began = self._last_event_s = time.monotonic()
        self._first_step = self._step = 0
        self._weight_change: WeightChange | None = None
        self._figures: dict[str, Any] = {}
        self.greedy_of_state: Callable[[], dict[str, Any]] = dict
        """Function that returns a greedy completion by the policy in training, as `continue_greedily` does; it is
        called when a state is saved."""

    def heartbeat(self) -> None:
        """Write the event `heartbeat`, unless an event was written in the last few seconds."""
        if time.monotonic() - self._last_event_s > _HEARTBEAT_S:
            self._write("heartbeat", step=self._step)

    def set_figures(self, figures: dict[str, Any]) -> None:
        """Keep the rollout figures of the current step."""
        self._figures = figures

    def report_validation(self, figures: dict[str, Any]) -> None:
        """Write the event `validation` for the current policy."""
        self._write("validation", step=self._step, **figures)

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Write the event `begin` and keep a sample of the weights, to check later whether they moved."""
        self._began = time.monotonic()
        self._weight_change = WeightChange(model)
        self._first_step = self._step = state.global_step // self._plan.updates_per_step
        self._write(
            "begin",
            num_steps=state.max_steps // self._plan.updates_per_step,
            resumed_step=self._first_step,
            num_trained_parameters=self._weight_change.num_parameters,
            num_processes=args.world_size,
            device=str(args.device),
        )

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write a heartbeat if one is due."""
        self.heartbeat()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Write the event `step`; raise Diverged if the loss or the gradient norm is nan or inf."""
        logs = logs or {}
        if "loss" not in logs:
            return
        self._step = state.global_step // self._plan.updates_per_step
        loss, norm = float(logs["loss"]), _number(logs.get("grad_norm"))
        if args.fp16 and norm is not None and not math.isfinite(norm):
            # The gradient scaler skips the update after a single overflow.
            norm = None
        if not (math.isfinite(loss) and (norm is None or math.isfinite(norm))):
            raise Diverged(f"loss {loss}, gradient norm {norm} at step {self._step}")
        self._write(
            "step",
            step=self._step,
            num_steps=self._plan.num_steps,
            loss=loss,
            grad_norm=norm,
            entropy=_number(logs.get("entropy")),
            learning_rate=_number(logs.get("learning_rate")),
            seconds=time.monotonic() - self._began,
            **self._figures,
        )

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Mark a state as complete once every process has written its part, and write the event `saved`."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.barrier()
        if self._is_first:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            if seen := self.greedy_of_state():
                self._write("live_greedy", step=self._step, **seen)
            mark_complete(folder)
            self._write("saved", step=self._step, state=folder.name)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the event `end`; raise NothingLearned if the weights changed at most by weight decay."""
        assert self._weight_change is not None
        steps = self._step - self._first_step
        if steps and self._weight_change.length() <= MIN_WEIGHT_CHANGE:
            raise NothingLearned(f"the weights did not change in {steps} steps")
        if steps and self._is_first and had_no_gradient(self._events.path):
            raise NothingLearned("no update had a gradient: the loss does not depend on the weights")
        seconds = time.monotonic() - self._began
        self._write("end", step=self._step, epoch=self._step / self._plan.steps_per_epoch, seconds=seconds)

    def _write(self, event: str, **facts: Any) -> None:
        self._last_event_s = time.monotonic()
        if self._is_first:
            self._events.write(event, **facts)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def gathered(values: Sequence[Any]) -> list[Any]:
    """Return the values of all processes."""
    from accelerate.utils import gather_object

    return list(gather_object(list(values)))


def rank_and_world() -> tuple[int, int]:
    """Return the number of this process, from 0, and the number of processes of the training."""
    if not torch.distributed.is_initialized():
        return 0, 1
    return torch.distributed.get_rank(), torch.distributed.get_world_size()
