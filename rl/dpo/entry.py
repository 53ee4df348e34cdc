"""Declare the stage `dpo` to flows: its instances are the critic and policies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from treadle.core.engines.base_model import folder_digest
from treadle.core.errors import ConfigError
from treadle.core.runs.address import Address
from treadle.core.runs.stage import Stage, StageContext
from treadle.core.tables import CHECKPOINTS
from treadle.rl.dpo.config import DpoOptions, DpoSettings
from treadle.rl.dpo.figures import dpo_report
from treadle.rl.dpo.heads import check_language_model
from treadle.rl.dpo.instances import CRITIC, dpo_options
from treadle.rl.dpo.tables import PAIR_LOG
from treadle.stages.entry import Inputs, StageEntry
from treadle.stages.models import named_checkpoint
from treadle.stages.plan import Plan


def _settings(plan: Plan, address: Address) -> DpoSettings:
    options = dpo_options(plan, address)
    check_language_model(Path(options.model).expanduser() / "config.json", f"{address}: dpo.model = {options.model}")
    return DpoSettings(
        options=options,
        is_critic=address.qualifier == CRITIC,
        model_digest=folder_digest(options.model),
        seed=plan.seed,
    )


def _inputs(plan: Plan, address: Address) -> Inputs:
    """Return the pairs and the base model; by default pairs of trajectories for the critic, of turns for a policy."""
    model = plan.options(address, DpoOptions).model
    checkpoint = named_checkpoint(model)
    for made in checkpoint:
        if made == address:
            raise ConfigError(f"{address}: dpo.model = {model} is the output of this instance; name its start")
        plan.check_checkpoint(made, f"{address}: dpo.model")
    kind = "trajectory" if address.qualifier == CRITIC else "turn"
    return {"preferences": (Address(address.iteration, "preferences", kind),), "checkpoint": checkpoint}


def _run(context: StageContext) -> Mapping[str, Any]:
    from treadle.rl.dpo.stage import run

    return run(context)


DPO_STAGE = Stage(
    name="dpo",
    version=1,
    settings=DpoSettings,
    consumes={"preferences": "preferences", "checkpoint": "checkpoint"},
    optional=frozenset({"checkpoint"}),
    produces=(CHECKPOINTS,),
    telemetry=(PAIR_LOG,),
    depends_on_address=True,
    run=_run,
)
DPO = StageEntry(
    stage=DPO_STAGE,
    table=DpoOptions,
    settings=_settings,
    inputs=_inputs,
    start_key="model",
    report=dpo_report,
    description="Train a critic or a policy on pairs, such as 1/dpo@critic; needs a worker with the environment `trl`.",
    on_gpu=True,
)
