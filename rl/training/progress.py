"""Report the progress of an RL training, with sparklines of the latest steps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from treadle.agent.jobs.status import Rate, ServerRates
from treadle.core.engines.training_run import StepProgress
from treadle.core.figures import duration
from treadle.core.runs.live_status import write_live_status
from treadle.core.runs.records import LiveStatus
from treadle.core.runs.stage import Progress
from treadle.rl.groups.live import ProcessStatus, RolloutCounts
from treadle.rl.training.curves import part_of, sparkline
from treadle.rl.training.events import RlStep, Validation


class RlProgress(StepProgress[RlStep]):
    """Reporter of steps and validations to the stage's progress, and of events within a step to `treadle status`."""

    def __init__(self, progress: Progress, scratch: Path, shown_parts: Sequence[str] = ()) -> None:
        """Report to `progress`, and to `treadle status` through the attempt's folder `scratch`."""
        super().__init__(progress)
        self._scratch = scratch
        self._num_steps = 0
        self._rate, self._servers = Rate(), ServerRates()
        self._shown_parts = shown_parts
        self._steps: list[RlStep] = []

    def begin(self, num_steps: int, resumed_step: int) -> None:
        """See `StepProgress.begin`."""
        self._num_steps = num_steps
        super().begin(num_steps, resumed_step)

    def live(self, status: ProcessStatus) -> None:
        """Report the current status of the engine's processes; an empty status means that they are starting."""
        now_s, counts = time.monotonic(), status.rollouts
        doing = ""
        if counts.num_open or counts.num_ended:
            doing = step_text(status, self._num_steps)
            rate = self._rate.per_s(now_s, status.tokens)
            self._progress.advance(0, rollouts=_counts_text(counts), tokens_per_s=round(rate))
        else:
            self._rate, self._servers = Rate(), ServerRates()
        servers = self._servers.statuses(status.servers, now_s)
        write_live_status(self._scratch, LiveStatus(doing=doing, model_servers=tuple(servers)))

    def facts(self, step: RlStep) -> dict[str, str | float]:
        """See `StepProgress.facts`."""
        self._steps.append(step)
        return {
            "reward": _curve([one.reward for one in self._steps], 2),
            "score": _curve([one.score for one in self._steps], 2),
            **{name: _curve([part_of(one, name) for one in self._steps], 2) for name in self._shown_parts},
            "calls": _curve([one.calls for one in self._steps], 2),
            "length": _curve([one.length for one in self._steps], 0),
        }

    def validation(self, validation: Validation) -> None:
        """Report a validation."""
        figures = validation.overall
        if figures.score is not None:
            self._progress.advance(0, validation=f"{figures.score:.2f} at step {validation.step}")


def step_text(status: ProcessStatus, num_steps: int) -> str:
    """Return a text with the step in progress, its rollouts by state, and the estimated time that they still need."""
    where = f"step {status.step:,} of {num_steps:,}" if status.step else "validation"
    left = f"; about {duration(status.left_s)} left for them" if status.left_s is not None else ""
    return f"{where}: {_counts_text(status.rollouts)}{left}"


def _counts_text(counts: RolloutCounts) -> str:
    numbers = {name: getattr(counts, name) for name in ("running", "queued", "failed", "cancelled")}
    told = "".join(f", {number:,} {name}" for name, number in numbers.items() if number)
    return f"{counts.finished:,} of {counts.num_open + counts.num_ended:,} rollouts finished{told}"


def _curve(values: Sequence[float | None], digits: int) -> str:
    newest = "-" if values[-1] is None else f"{values[-1]:.{digits}f}"
    return f"{newest} {sparkline(values)}".rstrip()
