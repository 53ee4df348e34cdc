"""Report an RL training: the facts for its record, and the page for its artifact."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from treadle.core.config import digest_json, semantic_dump
from treadle.core.figures import Figures, escape, render_figures
from treadle.rl.groups.oversampling_report import OverSampled, oversampling_figures
from treadle.rl.training.curves import (
    changing_parts,
    end_steps,
    mixed_environments,
    of_environment,
    part_of,
    unequal_share,
)
from treadle.rl.training.events import RlStep, Validation, ValidationFigures
from treadle.rl.training.launch import Reinforcement
from treadle.rl.training.plan import RlPlan

_MISSES = "searches not on record"
_STEP_FIGURES: tuple[tuple[str, Callable[[RlStep], float | None]], ...] = (
    ("reward", lambda step: step.reward),
    ("score", lambda step: step.score),
    ("share answered", lambda step: step.answered),
    ("share cut off for length", lambda step: step.cut_off),
    ("share out of time", lambda step: step.timeout),
    ("calls", lambda step: step.calls),
    ("failed calls", lambda step: step.tool_failures),
    (_MISSES, lambda step: step.web_misses),
    ("length in tokens", lambda step: step.length),
    ("groups with unequal rewards", unequal_share),
)
_EXPERIENCE_FIGURES: tuple[tuple[str, Callable[[RlStep], float | None]], ...] = (
    ("records of experience", lambda step: step.num_experiences),
    ("share that saw experience", lambda step: step.hinted),
    ("share whose experience was cut", lambda step: step.hint_cut),
)
_VALIDATION_FIGURES = {
    "score": "score",
    "efficiency": "efficiency",
    "calls": "calls",
    "length": "length",
    "executed": "executed",
}
"""Figure of a validation -> its heading."""


def engine_of(plan: RlPlan, done: Reinforcement) -> str:
    """Return the engine, its version and the variant, as shown in a checkpoint's row."""
    return plan.options.engine.label(done.versions, plan.machine.variant)


def record_metrics(plan: RlPlan, done: Reinforcement, *, policy_in: str, num_too_long: int) -> dict[str, Any]:
    """Return the metrics of a phase: its plan, its inputs, the number of steps and the final figures."""
    options, last = plan.options, done.steps[-1]
    facts = {
        "phase": plan.phase,
        "policy_in": policy_in,
        "engine": engine_of(plan, done),
        "plan_digest": digest_json(semantic_dump(plan)),
        **by_environment("environment_digest", plan.environment_digests),
        **(by_environment("rows", plan.environment_rows) if plan.is_mixed else {}),
        "seed": plan.seed,
        "reward_rule": options.reward.described,
        "credit_rule": options.credit.type,
        "rows": plan.num_rows,
        "rows_too_long": num_too_long,
        "validation_questions": plan.num_validation_rows,
        "steps_planned": plan.num_steps,
        "steps": done.num_steps,
        "resumed_step": done.resumed_step,
        "chosen_step": done.chosen_step,
        "rollouts": sum(step.num_rollouts for step in done.steps),
        "groups": sum(step.num_groups for step in done.steps),
        "equal_groups": sum(step.num_equal_groups for step in done.steps),
        "lost_rollouts": sum(step.num_lost or 0 for step in done.steps),
        "lost_groups": sum(step.num_lost_groups or 0 for step in done.steps),
        "rollouts_too_long": sum(step.num_too_long or 0 for step in done.steps),
        **_bias_metrics(done.steps),
        "first_reward": done.steps[0].reward,
        **{f"last_{name}": getattr(last, name) for name in ("reward", "score", "calls", "length")},
        **{f"last_part.{name}": value for name, value in (last.parts or {}).items()},
        **done.metrics(),
    }
    if (chosen := done.chosen_validation) is not None:
        facts |= {f"validation_{name}": getattr(chosen.overall, name) for name in ("score", "efficiency")}
    return facts


def _bias_metrics(steps: Sequence[RlStep]) -> dict[str, Any]:
    """Return the metrics of over-sampling; empty without it."""
    over = OverSampled.of([step.as_row() for step in steps])
    return {} if over is None else {f"oversample_{name}": value for name, value in asdict(over).items()}


def by_environment(metric: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a metric by environment, as `<metric>.<environment>` if there are several environments."""
    return {f"{metric}.{name}" if len(values) > 1 else metric: value for name, value in values.items()}


def turn_metrics(num_turns: Sequence[int]) -> dict[str, float]:
    """Return the mean and the 95th percentile of the number of turns of scored rollouts; empty if there are none."""
    if not num_turns:
        return {}
    ordered = sorted(num_turns)
    return {"turns_mean": sum(ordered) / len(ordered), "turns_p95": float(ordered[round(0.95 * (len(ordered) - 1))])}


def render_report(
    plan: RlPlan, done: Reinforcement, *, num_too_long: int, num_held_out: int, turns: Mapping[str, float]
) -> str:
    """Return the page `report.md`: the training set, how the figures changed, and which policy was selected."""
    options, num_rollouts = plan.options, sum(step.num_rollouts for step in done.steps)
    left_out = (
        f"; {num_too_long:,} left out for prompts over {options.max_prompt_tokens:,} tokens" if num_too_long else ""
    )
    rule = {"last": "the last one", "best": "the best in validation"}[options.checkpoint_rule]
    lines = [
        "# Reinforcement",
        f"Phase {plan.phase} of {plan.phases}, from {escape(plan.start)}, by {engine_of(plan, done)}: "
        f"{done.num_steps:,} steps over {plan.num_rows:,} questions{left_out}, {num_rollouts:,} rollouts in groups of "
        f"{options.group_size}; reward {escape(options.reward.described)}. "
        f"Exported: the policy of step {done.chosen_step:,} ({rule}).",
        "![curves](curves.svg)",
        render_figures(
            [
                _step_figures(done.steps, options.reward_parts),
                *oversampling_figures([step.as_row() for step in done.steps]),
                *_environment_figures(done.steps),
                *_validation_figures(done, plan.num_validation_rows, num_held_out),
            ]
        ),
    ]
    if used := [name for name in options.reward_parts if any(part_of(step, name) is not None for step in done.steps)]:
        lines.append(
            "Parts of rewards and credit: " + "; ".join(f"{name}, {options.reward_parts[name]}" for name in used) + "."
        )
    if turns:
        lines.append(f"Turns of a rollout: mean {turns['turns_mean']:.2f}, 95th percentile {turns['turns_p95']:.0f}.")
    return "\n\n".join(lines) + "\n"


def num_web_misses(steps: Sequence[RlStep]) -> int:
    """Return the number of searches in scored rollouts that the web record could not answer."""
    return round(sum((step.web_misses or 0.0) * step.num_rollouts for step in steps))


def num_validation_misses(validations: Sequence[Validation]) -> int:
    """Return the number of searches in all validations that the web record could not answer."""
    return round(sum((made.overall.web_misses or 0.0) * made.overall.num_questions for made in validations))


def _step_figures(steps: Sequence[RlStep], declared_parts: Iterable[str]) -> Figures:
    span = end_steps(len(steps))
    shown = [figure for figure in _STEP_FIGURES if figure[0] != _MISSES or num_web_misses(steps)]
    shown += [figure for figure in _EXPERIENCE_FIGURES if any(figure[1](step) is not None for step in steps)]
    shown += [(name, functools.partial(part_of, name=name)) for name in changing_parts(steps, declared_parts)]
    rows = tuple((name, _mean(steps[:span], value), _mean(steps[-span:], value)) for name, value in shown)
    return Figures("Rollouts in training", ("mean of", f"first {span} steps", f"last {span} steps"), rows)


def _environment_figures(steps: Sequence[RlStep]) -> list[Figures]:
    """Return a table of rewards and scores by environment; empty if there is only one."""
    span, rows = end_steps(len(steps)), []
    for name in mixed_environments(steps):
        number = sum(made[name].num_rollouts for step in steps if name in (made := step.environments or {}))
        cells = [name, f"{number:,}"]
        for figure in ("reward", "score"):
            value = functools.partial(of_environment, name=name, figure=figure)
            cells += [_mean(steps[:span], value), _mean(steps[-span:], value)]
        rows.append(tuple(cells))
    header = ("environment", "rollouts", f"reward, first {span} steps", f"last {span}", f"score, first {span}")
    return [Figures("Environments", (*header, f"last {span} steps"), tuple(rows))] if rows else []


def _validation_figures(done: Reinforcement, num_asked: int, num_held_out: int) -> list[Figures]:
    if not done.validations:
        return []
    misses = bool(num_validation_misses(done.validations))
    header = ("step", "questions", *_VALIDATION_FIGURES.values(), *((_MISSES,) if misses else ()))
    over_steps = Figures(
        "Validation",
        header,
        tuple(_validation_row(_step_name(made, done.chosen_step), made.overall, misses) for made in done.validations),
        f"Greedy answers to {num_asked:,} of {num_held_out:,} held-out questions, scored as in training.",
    )
    if (chosen := done.chosen_validation) is None:
        return [over_steps]
    rows = tuple(_validation_row(name, figures, misses) for name, figures in chosen.by_domain.items())
    found = [over_steps, Figures("Validation of the exported policy", ("domain", *header[1:]), rows)]
    if chosen.by_environment:
        rows = tuple(_validation_row(name, figures, misses) for name, figures in chosen.by_environment.items())
        found.append(Figures("Validation of the exported policy by environment", ("environment", *header[1:]), rows))
    return found


def _validation_row(name: str, figures: ValidationFigures, misses: bool) -> tuple[str | int, ...]:
    shown = (*_VALIDATION_FIGURES, *(("web_misses",) if misses else ()))
    return name, figures.num_questions, *(_number(getattr(figures, figure)) for figure in shown)


def _step_name(made: Validation, chosen_step: int) -> str:
    return f"{made.step:,}" + (" (exported)" if made.step == chosen_step else "")


def _mean(steps: Sequence[RlStep], value: Callable[[RlStep], float | None]) -> str:
    known = [one for step in steps if (one := value(step)) is not None]
    return _number(sum(known) / len(known) if known else None)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}" if abs(value) >= 100 else f"{value:.3f}"
