"""Estimate what the rollouts of a training phase will use."""

from __future__ import annotations

from treadle.core.runs.stage import Instance
from treadle.environments.mixture import find_environment
from treadle.rl.config import RlSettings
from treadle.rl.training.launch import RlFolder, saved_step
from treadle.tasks.estimate.context import EstimateContext, expected_shares, training_rows
from treadle.tasks.estimate.cost_model import (
    ROLLOUT_ASSUMPTIONS,
    PhaseSize,
    mean_cost,
    phase_size,
    rollout_cost,
)
from treadle.tasks.estimate.figures import Estimate, RoleEstimate
from treadle.tasks.estimate.measured import mean_usage


def estimate_of_phase(item: Instance, settings: RlSettings, context: EstimateContext) -> Estimate:
    """Return the estimate for the rollouts of a training phase."""
    num_rows, num_units_source = training_rows(item, context)
    done = _steps_done(item, context)
    if done:
        num_units_source += f"; {done:,} steps are done"
    size = phase_size(settings.options, num_rows, done)
    environments = settings.named_environments()
    shares = settings.options.shares or expected_shares(context.instances)
    modelled = mean_cost(shares, lambda name: rollout_cost(find_environment(environments, name)))
    mean = mean_usage(item, context.run, modelled, "a rollout")
    counts = {"training": size.num_rollouts, "validation": size.num_validation_rollouts}
    return Estimate(
        address=str(item.address),
        unit="rollout",
        num_units=size.num_rollouts + size.num_validation_rollouts,
        num_units_source=num_units_source,
        basis=mean.basis,
        assumptions=[*_size_lines(settings, size), *(() if mean.measured else ROLLOUT_ASSUMPTIONS)],
        roles=[
            RoleEstimate.of_units(what, settings.options.start, None, mean.roles["policy"], count)
            for what, count in counts.items()
            if count
        ],
    )


def _steps_done(item: Instance, context: EstimateContext) -> int:
    """Return the number of saved steps of the last attempt, if this one would resume from them."""
    run, fingerprint = context.run, context.resumed_fingerprint(item)
    if run is None or not fingerprint:
        return 0
    return saved_step(RlFolder(run.storage.directory(run.workspace_key(item.address, fingerprint))))


def _size_lines(settings: RlSettings, size: PhaseSize) -> list[str]:
    options = settings.options
    lines = [
        f"{size.num_steps:,} steps of {options.prompts_per_step:,} questions with {options.group_size} rollouts each"
    ]
    if size.num_validation_rollouts:
        lines.append(f"{options.validation_questions:,} held-out questions every {options.validation_steps:,} steps")
    return lines
