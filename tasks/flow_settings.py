"""Define the tables that determine what a run starts: `[flow]` and `[[companions]]`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema, field_validator, model_validator

from treadle.core.companions.settings import CompanionSettings, check_names
from treadle.core.config import Operational, Section
from treadle.core.runs.shards import MAX_SHARDS
from treadle.stages.recipes.calibrate import Calibrate
from treadle.stages.recipes.registry import AnyRecipe
from treadle.stages.registry import makes_checkpoint, other_names, stage_names

FlowStage = Annotated[
    str,
    WithJsonSchema({"type": "string", "enum": [name for name in stage_names() if name not in ("questions", "index")]}),
]


class FlowSettings(Section):
    """What one iteration of the flow runs."""

    recipe: AnyRecipe = Calibrate()
    """Order of the stages: the name of a recipe, or a table with its `type`."""
    stages: tuple[FlowStage, ...] = ("rollouts", "scores", "report")
    """Stages of the flow besides `questions`. `sft_rows` makes fine-tuning data from `pools`, or from `rollouts` and
    `scores` if tasks have no gold answers (`sft_rows.trajectories`), and `sft` trains on it.
    `rl` runs all phases of the curriculum (rollouts, scores, selection and training of each); `selection` without `rl`
    runs the first phase up to its selection. `rollouts`, `scores` and `report` measure models. Any stage can also be
    run by itself.
    """
    models: tuple[str, ...] = ()
    """Models that answer the questions, by their names under `models`. Each becomes `rollouts@<model>` and
    `scores@<model>`, and the report compares them. Empty: all models in their order, except the summarizer, models
    that episodes ask, the judges of scores, and models used only as a critic, refiner or judge in `pools`; if that
    leaves none, all models.
    """
    iterations: Operational[int] = Field(default=1, ge=1, le=100)
    """Number of iterations of the whole loop. Each one after the first starts from the last checkpoint of the previous
    one, so more than one iteration needs `sft` or `rl` in `stages`. May be raised for an existing run. A table that
    names `1/sft` refers to `2/sft` in the second iteration.
    """

    device_wait_s: Operational[float] = Field(default=86_400.0, ge=0.0)
    """Seconds that a stage waits for GPUs that another process on this machine holds. After that it fails."""

    workers: Operational[int] = Field(default=0, ge=0, le=MAX_SHARDS)
    """Number of flow runs of the deployment `work/shards` that a flow run requests to help with stages whose `shards`
    is above 1. No effect without Prefect: start `treadle work` yourself.
    """

    trackers: Operational[tuple[Literal["wandb", "mlflow", "tensorboard"], ...]] = ()
    """Experiment trackers that get the figures of each finished stage: its counts, from `report` those of each
    model and data set, from `pools` those of each round. Steps are iterations, phases or rounds. `wandb` and `mlflow`
    must be installed next to Treadle and read their environment variables; without a key W&B writes offline.
    `tensorboard` needs no package: its files are in `tensorboard/<run>` of the root, or TENSORBOARD_LOGGING_DIR.
    Trainings report their steps themselves, from the environment of their engine, by `sft.trackers` and `rl.trackers`.
    """

    @model_validator(mode="after")
    def _check_stages(self) -> FlowSettings:
        in_recipe = [stage for step in self.recipe.steps for stage in step.stages if stage != "questions"]
        known = list(dict.fromkeys([*in_recipe, *other_names()]))
        if unknown := [stage for stage in self.stages if stage not in known]:
            raise ValueError(
                f"stages names {unknown[0]!r}, which is no stage of the recipe {self.recipe.type}; there are "
                f"{', '.join(known)}; a stage of another package needs it installed"
            )
        return self

    @model_validator(mode="after")
    def _check_iterations(self) -> FlowSettings:
        if self.iterations > 1 and not any(map(makes_checkpoint, self.stages)):
            raise ValueError(
                f"iterations = {self.iterations}, but no stage of the flow trains, so every iteration would be the "
                "same; add sft or rl to flow.stages"
            )
        return self


class FlowTables(Section):
    """Tables that determine what a run starts."""

    flow: FlowSettings = FlowSettings()
    """Stages, models and iterations that make up the flow."""
    companions: Operational[tuple[CompanionSettings, ...]] = ()
    """Programs that are started before the stages, in this order, and stopped after them; one that is already
    running and ready is used without restarting it."""

    @field_validator("companions")
    @classmethod
    def _check_companions(cls, value: tuple[CompanionSettings, ...]) -> tuple[CompanionSettings, ...]:
        return check_names(value)
