"""Translate verl's metrics and the agent loop's files into the events that all engines write.

verl appends the metrics of a step to a file when the whole step is done: rollouts, updates, the saved state and the
validation. Rewards and figures come from the groups that the agent loop wrote, so they mean the same for every engine.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from treadle.core.engines.errors import Diverged
from treadle.core.engines.events import EventFile, mark_complete
from treadle.core.errors import EngineError
from treadle.rl.engine.dynamic_sampling import NoSpread, has_spread
from treadle.rl.engine.errors import BadEnvironment
from treadle.rl.engine.verl.folder import VerlFolder
from treadle.rl.groups.dump import write_draws, write_step
from treadle.rl.rewards.rewarded import RewardedItem
from treadle.rl.training.figures import step_figures, validation_figures
from treadle.rl.training.plan import RlPlan

_METRICS = {
    "loss": "actor/pg_loss",
    "entropy": "actor/entropy",
    "learning_rate": "actor/lr",
    "grad_norm": "actor/grad_norm",
}
"""Field of the event `step` -> verl's metric."""
_HEARTBEAT_S = 5.0


class Follower:
    """Follower of one training; each call of `poll` writes events for what is new."""

    def __init__(
        self, plan: RlPlan, folder: VerlFolder, output: Path, rollouts: Path, events: EventFile, resumed_step: int
    ) -> None:
        self.folder = folder
        """Folder of verl's files."""
        self.last_step = resumed_step
        """Number of the last finished step."""
        self._plan = plan
        self._output = output
        self._rollouts = rollouts
        self._events = events
        self._metrics = folder.path / "metrics.jsonl"
        self._offset = 0
        self._began = time.monotonic()
        self._last_heartbeat = (self._began, 0)

    def poll(self) -> None:
        """Write events for newly logged steps, or a heartbeat if more groups have been rolled out.

        Raises Diverged, NoSpread if dynamic sampling has used up its draws, BadEnvironment if a worker could not open
        the environment, and EngineError if half or more of a step's groups failed, as verl would train on the rest.
        """
        for line in self._new_lines():
            self._step(int(line["step"]), line["data"])
        self._check_failures()
        self._check_draws()
        self._write_heartbeat()

    def failures(self) -> list[str]:
        """Return the messages of failed groups of the step in progress and of its validation."""
        step = self.last_step + 1
        return [*self.folder.failures(step, validation=False), *self.folder.failures(step, validation=True)]

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
            # verl's logger writes null for nan and inf.
            if _METRICS[name] in metrics and (value is None or not math.isfinite(value)):
                raise Diverged(f"{name} is not finite at step {step}")
        made = self._complete_groups(step, validation=False)
        if self._plan.options.dynamic_sampling:
            write_draws(self._rollouts, step, ((group[0]["row"], _rewards(group)) for group in made))
        groups, drawn = self._trained(made)
        write_step(self._rollouts, step, [line["row"] for group in groups for line in group])
        names = [group[0]["row"]["environment"] for group in groups] if self._plan.is_mixed else None
        figures = step_figures([_rewards(group) for group in groups], names) | drawn
        self._events.write("step", step=step, **figures, **facts, seconds=time.monotonic() - self._began)
        self.last_step = step
        # verl saves before it validates, so an error in the validation must not lose the state.
        self._saved(step)
        if self._plan.validates_at(step):
            self._validation(step)
        shutil.rmtree(self.folder.groups_of(step, validation=False), ignore_errors=True)

    def _trained(self, groups: list[list[dict[str, Any]]]) -> tuple[list[list[dict[str, Any]]], dict[str, int]]:
        """Return the groups that verl could train on, and, with dynamic sampling, how many were dropped or surplus.

        Surplus groups are included, because verl does not report which groups it used.
        """
        options = self._plan.options
        if not options.dynamic_sampling:
            return groups, {}
        kept = [group for group in groups if has_spread(_rewards(group))]
        surplus = max(0, len(kept) - options.prompts_per_step)
        return kept, {"num_dropped_groups": len(groups) - len(kept), "num_surplus_groups": surplus}

    def _check_draws(self) -> None:
        """Raise NoSpread if the step in progress has used up the plan's draws without enough usable groups.

        verl itself would continue to draw forever.
        """
        options, step = self._plan.options, self.last_step + 1
        most = options.prompts_per_draw * (1 + options.max_extra_batches)
        if not options.dynamic_sampling or self.folder.num_groups(step) < most:
            return
        groups = self.folder.read_groups(step, validation=False)
        kept = sum(has_spread(_rewards(group)) for group in groups)
        if len(groups) >= most and kept < options.prompts_per_step:
            raise NoSpread(
                f"step {step:,}: of {len(groups):,} groups, {kept:,} have rewards that differ, but a step needs "
                f"{options.prompts_per_step:,}; select questions whose rollouts differ, raise rl.max_extra_batches, "
                "rl.temperature or rl.group_size, or start from a policy that is sometimes right"
            )

    def _validation(self, step: int) -> None:
        lines = [line for group in self._complete_groups(step, validation=True) for line in group]
        domains = [line["row"]["domain"] for line in lines]
        names = [line["row"]["environment"] for line in lines] if self._plan.is_mixed else None
        figures = validation_figures([_reward(line) for line in lines], domains, names)
        self._events.write("validation", step=step, **figures)
        shutil.rmtree(self.folder.groups_of(step, validation=True), ignore_errors=True)

    def _complete_groups(self, step: int, *, validation: bool) -> list[list[dict[str, Any]]]:
        """Return the finished groups of a step or a validation; write a warning if some are missing."""
        groups = self.folder.read_groups(step, validation=validation)
        if (missing := self._num_expected(validation) - len(groups)) > 0:
            self._events.write("warning", message=self._tolerate_missing(step, missing, validation=validation))
        return groups

    def _check_failures(self) -> None:
        """Raise an error if the step in progress has already failed, before verl trains on it."""
        failure = self.folder.environment_failure
        if failure.exists() and (why := failure.read_text(encoding="utf-8")):
            raise BadEnvironment(why)
        step = self.last_step + 1
        for validation in (False, True):
            if failures := self.folder.failures(step, validation=validation):
                self._tolerate_missing(step, len(failures), validation=validation)

    def _tolerate_missing(self, step: int, num_missing: int, *, validation: bool) -> str:
        """Return a warning about missing groups; raise EngineError if half or more are missing."""
        what = f"questions of the validation after step {step:,}" if validation else f"groups of step {step:,}"
        expected = self._num_expected(validation)
        message = f"{num_missing:,} of {expected:,} {what} could not be rolled out"
        if failures := self.folder.failures(step, validation=validation):
            message += f"; first cause: {failures[0]}"
        if 2 * num_missing >= expected:
            raise EngineError(message)
        return message

    def _num_expected(self, validation: bool) -> int:
        return self._plan.num_validation_rows if validation else self._plan.options.prompts_per_step

    def _saved(self, step: int) -> None:
        state = self._output / f"global_step_{step}"
        if state.is_dir():
            mark_complete(state)
            self._events.write("saved", step=step, state=state.name)

    def _write_heartbeat(self) -> None:
        """Write a heartbeat if there are more groups than at the last one."""
        last_s, known = self._last_heartbeat
        if time.monotonic() - last_s < _HEARTBEAT_S:
            return
        number = sum(1 for _ in self.folder.groups.glob("*/*.jsonl"))
        self._last_heartbeat = (time.monotonic(), number)
        if number not in (0, known):
            self._events.write("heartbeat", step=self.last_step + 1)


def _rewards(group: Sequence[Mapping[str, Any]]) -> list[RewardedItem]:
    return [_reward(line) for line in group]


def _reward(line: Mapping[str, Any]) -> RewardedItem:
    reward = line["reward"]
    return RewardedItem(**{**reward, "notes": tuple(reward["notes"])})
