"""Check a curriculum phase statically, before the run: whether it can select questions and can be trained.

Pure functions: no file, machine or engine is accessed. Checks that depend on these are made by the stages. Documented
in docs/behaviour/curriculum.md.
"""

from __future__ import annotations

from typing import Literal

from treadle.core.engines.config import Machine
from treadle.core.errors import ConfigError
from treadle.rl.config import RlOptions
from treadle.rl.curriculum import PhaseRollouts
from treadle.rl.selection.dispersion import MAX_ROLLOUTS
from treadle.rl.selection.settings import SelectionOptions
from treadle.rl.training.plan import RlPlan


def check_spread(selection: SelectionOptions, rollouts: PhaseRollouts, where: str) -> None:
    """Raise ConfigError if a selection from rollouts with these settings would select no question.

    `where` is the selection's address, for messages.
    """
    number = rollouts.samples_per_question
    if rollouts.split == "heldout":
        raise ConfigError(
            f'{where}: the rollouts of its phase are of split = "heldout", and held-out questions are never trained '
            'on; set split to "train" in curriculum.rollouts'
        )
    if number > MAX_ROLLOUTS:
        raise ConfigError(
            f"{where}: samples_per_question = {number:,} in the rollouts of its phase is more than {MAX_ROLLOUTS:,}, "
            "the maximum for the selection; lower it in curriculum.rollouts"
        )
    if number < selection.min_rollouts:
        raise ConfigError(
            f"{where}: selection.min_rollouts = {selection.min_rollouts} is more than samples_per_question = {number} "
            "in the rollouts of its phase, so every question would be left out; raise the latter in "
            "curriculum.rollouts, or lower the former"
        )
    if not rollouts.sampling.temperature:
        raise ConfigError(
            f"{where}: the rollouts of its phase are sampled at temperature 0, so those of a question do not differ "
            "and nothing can be selected by them; raise curriculum.rollouts.sampling.temperature"
        )


def check_training(options: RlOptions, selection: SelectionOptions, rollouts: PhaseRollouts, where: str) -> None:
    """Raise ConfigError if a phase could not be trained, whatever is selected; `where` is the training's address."""
    most = [("selection.max_questions", selection.max_questions)]
    if selection.quotas:
        most.append(("the sum of selection.quotas", sum(selection.quotas.values())))
    if rollouts.max_questions is not None:
        most.append(("curriculum.rollouts.max_questions", rollouts.max_questions))
    for name, number in most:
        if number < options.prompts_per_step:
            raise ConfigError(
                f"{where}: {name} = {number} is less than rl.prompts_per_step = {options.prompts_per_step}, so there "
                "would be no step; raise the former, or lower the latter"
            )
    if options.checkpoint_rule == "best" and not options.validation_questions:
        raise ConfigError(
            f'{where}: rl.checkpoint_rule = "best" needs validation; set rl.validation_questions, or use "last"'
        )
    try:
        _check_engine(options)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _check_engine(options: RlOptions) -> None:
    """Generate the engine's configuration for the most permissive machine that the options allow.

    If the engine refuses it with a ConfigError, it would refuse every other machine too.
    """
    variant: Literal["cpu", "cuda"] = "cpu" if options.variant == "cpu" else "cuda"
    devices = options.num_devices or len(options.devices) or options.engine.fewest_devices(options)
    machine = Machine(variant=variant, num_devices=devices, num_nodes=options.num_nodes)
    plan = RlPlan(
        options=options,
        num_rows=options.prompts_per_step,
        num_validation_rows=options.validation_questions,
        machine=machine,
    )
    options.engine.check_plan(plan)
