"""What verl logs and the agent loop writes, told as the events that every engine tells.

verl appends the metrics of a step to a file when all of the step is done: rollouts, updates, the saved state, the
validation. Rewards and figures come from the groups that the agent loop wrote, so they mean the same with every engine.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from treadle.core.engines.events import EventFile, mark_complete
from treadle.rl.engine.errors import Diverged
from treadle.rl.engine.verl_files import VerlFolder, write_lines
from treadle.rl.figures import step_figures, validation_figures
from treadle.rl.plan import RlPlan
from treadle.rl.rewards import Reward

_METRICS = {
    "loss": "actor/pg_loss",
    "entropy": "actor/entropy",
    "learning_rate": "actor/lr",
    "grad_norm": "actor/grad_norm",
}
"""Fact of the event `step` -> verl's name of it."""
_BEAT_S = 5.0


class Follower:
    """Follows one training; `look` tells what is new."""

    def __init__(
        self, plan: RlPlan, folder: VerlFolder, output: Path, rollouts: Path, events: EventFile, resumed_step: int
    ) -> None:
        self.folder = folder
        """Where verl's files lie."""
        self.last_step = resumed_step
        """Steps that are done."""
        self._plan = plan
        self._output = output
        self._rollouts = rollouts
        self._events = events
        self._metrics = folder.path / "metrics.jsonl"
        self._offset = 0
        self._began = time.monotonic()
        self._beat = (self._began, 0)

    def look(self) -> None:
        """Tell of the steps that were logged since, or that groups are being made; raises Diverged."""
        for line in self._new_lines():
            self._step(int(line["step"]), line["data"])
        self._tell_life()

    def _new_lines(self) -> list[dict[str, Any]]:
        if not self._metrics.exists():
            return []
        with self._metrics.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        return [json.loads(line) for line in data[:whole].splitlines()]

    def _step(self, step: int, metrics: Mapping[str, Any]) -> None:
        facts = {name: metrics.get(key) for name, key in _METRICS.items()}
        for name in ("loss", "grad_norm"):
            value = facts[name]
            # verl's logger writes null for what is no number.
            if _METRICS[name] in metrics and (value is None or not math.isfinite(value)):
                raise Diverged(f"{name} is no number at step {step}")
        groups = self.folder.read_groups(step, validation=False)
        write_lines(self._rollouts / f"step-{step:06d}.jsonl", [line["row"] for group in groups for line in group])
        figures = step_figures([[_reward(line) for line in group] for group in groups])
        self._events.write("step", step=step, **figures, **facts, seconds=time.monotonic() - self._began)
        self.last_step = step
        if self._plan.validates_at(step):
            self._validation(step)
        self._saved(step)
        shutil.rmtree(self.folder.groups(step, validation=False), ignore_errors=True)

    def _validation(self, step: int) -> None:
        lines = [line for group in self.folder.read_groups(step, validation=True) for line in group]
        domains = [line["row"]["domain"] for line in lines]
        figures = validation_figures([_reward(line) for line in lines], domains)
        self._events.write("validation", step=step, **figures)
        shutil.rmtree(self.folder.groups(step, validation=True), ignore_errors=True)

    def _saved(self, step: int) -> None:
        state = self._output / f"global_step_{step}"
        if state.is_dir():
            mark_complete(state)
            self._events.write("saved", step=step, state=state.name)

    def _tell_life(self) -> None:
        """A beat when more groups are there than at the last one."""
        told, known = self._beat
        if time.monotonic() - told < _BEAT_S:
            return
        number = sum(1 for _ in (self.folder.path / "groups").glob("*/*.jsonl"))
        self._beat = (time.monotonic(), number)
        if number not in (0, known):
            self._events.write("beat", step=self.last_step + 1)


def _reward(line: Mapping[str, Any]) -> Reward:
    reward = line["reward"]
    return Reward(**{**reward, "format_reasons": tuple(reward["format_reasons"])})
