"""Declare the stage `sft` to flows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treadle.core.engines.base_model import folder_digest
from treadle.core.errors import ConfigError
from treadle.core.runs.address import Address
from treadle.core.runs.stage import Stage, StageContext
from treadle.core.tables import CHECKPOINTS
from treadle.sft.config import SftOptions, SftSettings
from treadle.sft.tables import TRAINING_LOG
from treadle.stages.entry import Inputs, StageEntry
from treadle.stages.models import named_checkpoint
from treadle.stages.plan import Plan


def _settings(plan: Plan, address: Address) -> SftSettings:
    options = plan.options(address, SftOptions)
    return SftSettings(options=options, model_digest=folder_digest(options.model), seed=plan.seed)


def _inputs(plan: Plan, address: Address) -> Inputs:
    model = plan.options(address, SftOptions).model
    checkpoint = named_checkpoint(model)
    if address in checkpoint:
        raise ConfigError(
            f"{address}: sft.model = {model} is the output of this stage; use `embedded`, a folder, a hub id, or "
            "a phase of the curriculum such as 1/rl@phase-1"
        )
    for made in checkpoint:
        plan.check_checkpoint(made, f"{address}: sft.model")
    return {"sft_rows": (Address(address.iteration, "sft_rows"),), "checkpoint": checkpoint}


def _run(context: StageContext) -> Mapping[str, Any]:
    from treadle.sft.stage import run

    return run(context)


SFT_STAGE = Stage(
    name="sft",
    version=1,
    settings=SftSettings,
    consumes={"sft_rows": "sft_rows", "checkpoint": "checkpoint"},
    optional=frozenset({"checkpoint"}),
    produces=(CHECKPOINTS,),
    telemetry=(TRAINING_LOG,),
    depends_on_address=True,
    run=_run,
)
SFT = StageEntry(
    stage=SFT_STAGE,
    table=SftOptions,
    settings=_settings,
    inputs=_inputs,
    start_key="model",
    description="Fine-tune a model on the rows; needs a worker with the environment of `sft.engine`.",
    on_gpu=True,
)
