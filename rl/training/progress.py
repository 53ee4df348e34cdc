"""Report the progress of an RL training, with sparklines of the latest steps."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.core.engines.training_run import StepProgress
from treadle.core.runs.stage import Progress
from treadle.rl.training.curves import part_of, sparkline
from treadle.rl.training.events import RlStep, Validation


class RlProgress(StepProgress[RlStep]):
    """Reporter of steps and validations to the stage's progress."""

    def __init__(self, progress: Progress, shown_parts: Sequence[str] = ()) -> None:
        super().__init__(progress)
        self._shown_parts = shown_parts
        self._steps: list[RlStep] = []

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


def _curve(values: Sequence[float | None], digits: int) -> str:
    newest = "-" if values[-1] is None else f"{values[-1]:.{digits}f}"
    return f"{newest} {sparkline(values)}".rstrip()
