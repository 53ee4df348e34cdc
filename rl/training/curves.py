"""Draw the curves of an RL training: a picture for the artifact, and sparklines for the terminal and the UI."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from treadle.core.plots import COLOUR, LIGHT, WARM, draw_svg
from treadle.rl.training.events import RlStep, Validation, ValidationFigures

_BLOCKS = "▁▂▃▄▅▆▇█"
_MEAN_WINDOW = 8
"""Number of steps in the moving mean, because single steps of small batches are noisy."""
_MAX_END_STEPS = 10
"""Maximum number of steps at either end of a training that are averaged."""

StepValue = Callable[[RlStep], float | None]
ValidationValue = Callable[[Validation], float | None]

_PANELS: tuple[tuple[str, StepValue, ValidationValue | None], ...] = (
    ("reward", lambda step: step.reward, None),
    ("score", lambda step: step.score, lambda made: made.overall.score),
    ("share answered", lambda step: step.answered, None),
    ("calls", lambda step: step.calls, lambda made: made.overall.calls),
    ("length in tokens", lambda step: step.length, lambda made: made.overall.length),
    ("share out of time", lambda step: step.timeout, None),
    ("groups with unequal rewards", lambda step: unequal_share(step), None),
)
_OVER_SAMPLING: tuple[tuple[str, StepValue, ValidationValue | None], ...] = (
    ("length of cancelled rollouts so far", lambda step: step.cancelled_length, None),
    ("length bias in audited groups", lambda step: step.length_bias, None),
)
_PANELS_PER_ROW = 4
_MAX_ENVIRONMENT_PANELS = 6
"""Maximum number of environments that are drawn."""
_MAX_PART_PANELS = 5
"""Maximum number of parts of the reward that are drawn."""


def part_of(figures: RlStep | ValidationFigures, name: str) -> float | None:
    """Return the mean of a part of the rewards; None if no reward has this part."""
    return (figures.parts or {}).get(name)


def changing_parts(steps: Sequence[RlStep], declared: Iterable[str]) -> list[str]:
    """Return the declared parts of the rewards that differ between steps."""
    return [name for name in declared if len({part_of(step, name) for step in steps} - {None}) > 1]


def sparkline(values: Sequence[float | None], width: int = 12) -> str:
    """Return the newest values as at most `width` block characters, scaled from their minimum to their maximum.

    A missing value is a blank; equal values are a line at half height.
    """
    newest = list(values)[-width:]
    known = [value for value in newest if value is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    top = len(_BLOCKS) - 1

    def block(value: float) -> str:
        return _BLOCKS[round((value - low) / (high - low) * top) if high > low else top // 2]

    return "".join(" " if value is None else block(value) for value in newest)


def moving_mean(values: Sequence[float | None], width: int = _MEAN_WINDOW) -> list[float | None]:
    """Return for each position the mean of the known values among the last `width`; None if there is none."""
    means: list[float | None] = []
    for place in range(len(values)):
        known = [value for value in values[max(0, place - width + 1) : place + 1] if value is not None]
        means.append(sum(known) / len(known) if known else None)
    return means


def end_steps(num_steps: int) -> int:
    """Return how many steps to average at the start and at the end of a training: a third of all, from 1 to 10.

    Fewer steps would show which questions were drawn rather than how the policy changed. The two ends overlap only if
    there is a single step.
    """
    return max(1, min(_MAX_END_STEPS, num_steps // 3))


def unequal_share(step: RlStep) -> float | None:
    """Return the share of groups with unequal rewards, which give a gradient; None without groups."""
    return 1.0 - step.num_equal_groups / step.num_groups if step.num_groups else None


def draw_curves(
    steps: Sequence[RlStep], validations: Sequence[Validation], chosen_step: int, declared_parts: Iterable[str] = ()
) -> bytes:
    """Return an SVG with one panel per figure over the steps, such as reward, score and length.

    Of the declared parts of the reward, the first ones that change over the steps have a panel. If there are several
    environments, each has two panels.

    Light lines show each step, dark lines the moving mean over 8 steps, red ones the validation, and a dotted line the
    chosen step. Equal data gives equal bytes. Raises ConfigError without matplotlib.
    """

    shown = changing_parts(steps, declared_parts)[:_MAX_PART_PANELS]
    over = _OVER_SAMPLING if any(step.num_cancelled is not None for step in steps) else ()
    panels = [*_PANELS, *over, *_environment_panels(steps), *map(_part_panel, shown)]
    num_rows = math.ceil(len(panels) / _PANELS_PER_ROW)

    def draw(figure: Any) -> None:
        axes = list(figure.subplots(num_rows, _PANELS_PER_ROW, sharex=True).flat)
        for unused in axes[len(panels) :]:
            unused.remove()
        for panel, (title, value, validated) in zip(axes, panels, strict=False):
            _draw_panel(panel, steps, value)
            if validated is not None and validations:
                panel.plot(
                    [made.step for made in validations],
                    [_or_nan(validated(made)) for made in validations],
                    color=WARM, linewidth=1, marker="o", markersize=3, label="held-out, greedy",
                )  # fmt: skip
                panel.legend(frameon=False)
            panel.axvline(chosen_step, color="black", linewidth=1, linestyle=":")
            panel.set_title(title)
        for panel in axes[max(0, len(panels) - _PANELS_PER_ROW) : len(panels)]:
            panel.set_xlabel("step")
            panel.tick_params(labelbottom=True)

    return draw_svg(draw, width=13.0, height=2.5 * num_rows)


def mixed_environments(steps: Sequence[RlStep]) -> list[str]:
    """Return the names of the environments that have separate figures in some step."""
    return sorted({name for step in steps for name in step.environments or {}})


def of_environment(step: RlStep, name: str, figure: str) -> float | None:
    """Return the mean `reward` or `score` (named by `figure`) of an environment in a step; None without one."""
    figures = (step.environments or {}).get(name)
    value: float | None = getattr(figures, figure, None)
    return value


def _environment_panels(steps: Sequence[RlStep]) -> list[tuple[str, StepValue, ValidationValue | None]]:
    """Return two panels for each environment: reward and score, whose scales may differ between environments."""
    panels: list[tuple[str, StepValue, ValidationValue | None]] = []
    for name in mixed_environments(steps)[:_MAX_ENVIRONMENT_PANELS]:
        panels.append((f"{name}: reward", functools.partial(of_environment, name=name, figure="reward"), None))
        score = functools.partial(of_environment, name=name, figure="score")
        panels.append((f"{name}: score", score, functools.partial(_validated_score, name=name)))
    return panels


def _validated_score(made: Validation, name: str) -> float | None:
    figures = made.by_environment.get(name)
    return None if figures is None else figures.score


def _part_panel(name: str) -> tuple[str, StepValue, ValidationValue | None]:
    return name, lambda step: part_of(step, name), lambda made: part_of(made.overall, name)


def _draw_panel(axes: Any, steps: Sequence[RlStep], value: StepValue) -> None:
    places, values = [step.step for step in steps], [value(step) for step in steps]
    axes.plot(places, [_or_nan(one) for one in values], color=LIGHT, linewidth=1, marker=".", markersize=3)
    axes.plot(places, [_or_nan(one) for one in moving_mean(values)], color=COLOUR, linewidth=1.5)


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value
