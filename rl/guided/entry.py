"""Declare the stage `guided_rollouts` to flows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from treadle.core.runs.address import Address
from treadle.core.runs.stage import Stage, StageContext, WorkResult
from treadle.environments.rollouts.entry import helper_checkpoints, rollout_fields
from treadle.rl.advantages.entry import critic_checkpoint, critic_fields
from treadle.rl.advantages.settings import AdvantagesOptions
from treadle.rl.guided.figures import guided_report
from treadle.rl.guided.settings import GuidedOptions, GuidedSettings
from treadle.rl.guided.tables import GUIDED_ROLLOUTS as GUIDED_ROLLOUTS_TABLE
from treadle.rl.preferences.entry import policy_checkpoint, policy_rollouts
from treadle.stages.entry import Inputs, StageEntry
from treadle.stages.plan import Plan


def _settings(plan: Plan, address: Address) -> GuidedSettings:
    sampled = plan.sampled(policy_rollouts(plan, address.iteration))
    advantages = plan.options(Address(address.iteration, "advantages"), AdvantagesOptions)
    return GuidedSettings(
        model_name=sampled.name,
        **rollout_fields(plan, sampled),
        **critic_fields(plan, address),
        reference_conditioning=advantages.reference_conditioning,
        scorers=dict(plan.scorers()),
        options=plan.options(address, GuidedOptions),
    )


def _inputs(plan: Plan, address: Address) -> Inputs:
    iteration = address.iteration
    made = (critic_checkpoint(address), *policy_checkpoint(plan, iteration), *helper_checkpoints(plan))
    return {
        "questions": (Address(iteration, "questions"),),
        "checkpoint": tuple(dict.fromkeys(made)),
        "scores": (replace(policy_rollouts(plan, iteration), stage="scores"),),
    }


def _run(context: StageContext) -> Mapping[str, Any]:
    from treadle.rl.guided.run import GuidedRun

    return GuidedRun(context).write()


def _work(context: StageContext) -> WorkResult:
    from treadle.core import steady_loop
    from treadle.rl.guided.run import GuidedRun

    return steady_loop.run(GuidedRun(context).work())


GUIDED_ROLLOUTS_STAGE = Stage(
    name="guided_rollouts",
    version=1,
    settings=GuidedSettings,
    consumes={"questions": "questions", "checkpoint": "checkpoint", "scores": "scores"},
    produces=(GUIDED_ROLLOUTS_TABLE,),
    run=_run,
    work=_work,
    num_shards=lambda settings: settings.options.shards,
)
GUIDED_ROLLOUTS = StageEntry(
    stage=GUIDED_ROLLOUTS_STAGE,
    table=GuidedOptions,
    settings=_settings,
    inputs=_inputs,
    report=guided_report,
    description="Roll out held-out tasks with the critic's choice among candidates as each turn, a diagnostic.",
    on_gpu=True,
)
