"""Declare the stage `preferences` to flows: its instances are `trajectory`, `dialogue` and `turn`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from treadle.core.errors import ConfigError
from treadle.core.runs.address import Address
from treadle.core.runs.stage import Stage, StageContext
from treadle.rl.preferences.settings import PairKind, PreferencesOptions, PreferencesSettings
from treadle.rl.preferences.tables import PREFERENCES as PREFERENCES_TABLE
from treadle.stages.entry import Inputs, StageEntry
from treadle.stages.models import checked_model, checkpoints_of, served_tokenizer, tokenizer_folder
from treadle.stages.plan import Plan

_KINDS: Mapping[str | None, PairKind] = {"trajectory": "trajectory", "dialogue": "dialogue", "turn": "turn"}


def pair_kind(address: Address) -> PairKind:
    """Return the kind of an instance's pairs; raise ConfigError for another qualifier."""
    kind = _KINDS.get(address.qualifier)
    if kind is None:
        raise ConfigError(
            f"{address}: pairs are @trajectory, @dialogue or @turn; write {address.iteration}/preferences@turn"
        )
    return kind


def policy_rollouts(plan: Plan, iteration: int) -> Address:
    """Return the instance with the policy's rollouts, from which the preferences are made."""
    return Address(iteration, "rollouts", plan.policy)


def policy_checkpoint(plan: Plan, iteration: int) -> tuple[Address, ...]:
    """Return the instances whose checkpoints sampled the policy's rollouts; empty for a model from outside the run."""
    return plan.sampled(policy_rollouts(plan, iteration)).checkpoints or checkpoints_of(plan, (plan.policy,))


def policy_tokenizer(plan: Plan, address: Address) -> tuple[Path | None, str]:
    """Return the folder of the policy's tokenizer, and its digest.

    It is the configured tokenizer, or else that of the model that the run serves, whose digest is empty. The folder is
    None if there is neither and the policy is a checkpoint of the run. Raises ConfigError if no tokenizer is known, or
    if the policy does not continue text.
    """
    model, digest = checked_model(plan.policy, plan.models[plan.policy])
    folder = tokenizer_folder(model) or served_tokenizer(model)
    is_known = folder is not None or policy_checkpoint(plan, address.iteration)
    if not is_known or not model.continues_text:
        raise ConfigError(
            f"{address}: pairs are made of token ids; set models.{plan.policy}.tokenizer to the folder of its "
            'tokenizer, and leave api at "completions"'
        )
    return folder, digest


def _settings(plan: Plan, address: Address) -> PreferencesSettings:
    options = plan.options(address, PreferencesOptions)
    kind = pair_kind(address)
    if kind == "turn":
        return PreferencesSettings(kind=kind, options=options, seed=plan.seed)
    folder, digest = policy_tokenizer(plan, address)
    return PreferencesSettings(
        kind=kind, options=options, **plan.mixture(), tokenizer=folder, tokenizer_digest=digest, seed=plan.seed
    )


def _inputs(plan: Plan, address: Address) -> Inputs:
    iteration = address.iteration
    if pair_kind(address) == "turn":
        return {name: (Address(iteration, name),) for name in ("candidates", "advantages")}
    rollouts = policy_rollouts(plan, iteration)
    return {
        "rollouts": (rollouts,),
        "scores": (Address(iteration, "scores", rollouts.qualifier),),
        "questions": (Address(iteration, "questions"),),
        "checkpoint": policy_checkpoint(plan, iteration),
    }


def _run(context: StageContext) -> Mapping[str, Any]:
    if context.settings.kind == "turn":
        from treadle.rl.preferences.turn_pairs import TurnPairs

        return TurnPairs(context).run()
    from treadle.rl.preferences.trajectory_pairs import TrajectoryPairs

    return TrajectoryPairs(context).run()


_CONSUMED = ("rollouts", "scores", "questions", "checkpoint", "candidates", "advantages")

PREFERENCES_STAGE = Stage(
    name="preferences",
    version=1,
    settings=PreferencesSettings,
    consumes={name: name for name in _CONSUMED},
    optional=frozenset(_CONSUMED),
    produces=(PREFERENCES_TABLE,),
    run=_run,
)
PREFERENCES = StageEntry(
    stage=PREFERENCES_STAGE,
    table=PreferencesOptions,
    settings=_settings,
    inputs=_inputs,
    description="Make pairs of trajectories or turns; set the instance, such as 1/preferences@turn.",
)
