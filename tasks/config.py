"""The whole configuration of a run: one table per stage, the models, and how instances differ from the tables."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from treadle.agent.config import EnvironmentSettings
from treadle.agent.rollouts import RolloutOptions
from treadle.core.config import Section
from treadle.core.llm.config import ModelSettings
from treadle.core.stage import Address
from treadle.datagen.pools_settings import PoolOptions
from treadle.datagen.question_sources import QuestionsSettings
from treadle.datagen.sft_rows_settings import SftRowsOptions
from treadle.eval.config import ReportSettings, ScoresSettings
from treadle.sft.config import SftOptions

FlowStage = Literal["pools", "sft_rows", "sft", "rollouts", "scores", "report"]


class FlowSettings(Section):
    """What one turn of the flow does."""

    stages: tuple[FlowStage, ...] = ("rollouts", "scores", "report")
    """Stages of the flow besides `questions`: `pools` and `sft_rows` make fine-tuning data, `sft` trains on it, the
    others measure models. Any stage can also be run by itself."""
    models: tuple[str, ...] = ()
    """Models that answer the questions, by their names under `models`; each becomes `rollouts@<model>` and
    `scores@<model>`, and the report compares them. Empty: all but the summarizer and those that only help to make
    pools, in their order."""
    iterations: int = Field(default=1, ge=1, le=1)
    """Turns of the whole loop."""


class TreadleConfig(Section):
    """One run. Written once as `config.json` when the run is made; later changes are refused if they would change
    results."""

    seed: int = Field(default=0, ge=0, lt=2**31)
    """Every random choice of the run derives from it."""
    flow: FlowSettings = FlowSettings()
    """Which instances the flow is made of."""
    models: dict[str, ModelSettings] = {}
    """Models by name. The name stands in addresses (`1/rollouts@<name>`) and in the reports."""
    questions: QuestionsSettings = QuestionsSettings()
    """Stage `questions`: where questions come from and how they are checked."""
    environment: EnvironmentSettings = EnvironmentSettings()
    """What the agent can do: prompt, tools and limits. One environment for data, training and evaluation."""
    pools: PoolOptions = PoolOptions()
    """Stage `pools`: the self-evolving flywheel."""
    sft_rows: SftRowsOptions = SftRowsOptions()
    """Stage `sft_rows`: which trajectories become rows for fine-tuning."""
    sft: SftOptions = SftOptions()
    """Stage `sft`: how a model is fine-tuned on them."""
    rollouts: RolloutOptions = RolloutOptions()
    """Stage `rollouts`: how many trajectories, and how they are sampled."""
    scores: ScoresSettings = ScoresSettings()
    """Stage `scores`."""
    report: ReportSettings = ReportSettings()
    """Stage `report`."""
    overrides: dict[str, dict[str, Any]] = {}
    """Keys of a stage's table that differ for one instance, by address:
    `overrides."1/rollouts@base".max_questions = 20`."""

    @model_validator(mode="after")
    def check_names(self) -> TreadleConfig:
        """Refuse names that point nowhere."""
        for name in self.flow.models:
            if name not in self.models:
                raise ValueError(f"flow.models names {name!r}, which is not under [models]; add [models.{name}]")
        helper = self.environment.search.summarizer
        if helper is not None and helper not in self.models:
            raise ValueError(
                f"environment.search.summarizer names {helper!r}, which is not under [models]; add [models.{helper}]"
            )
        for role in ("policy", "critic", "refiner", "judge"):
            name = getattr(self.pools.roles, role).model
            if name is not None and name not in self.models:
                raise ValueError(
                    f"pools.roles.{role}.model names {name!r}, which is not under [models]; add [models.{name}]"
                )
        for name in self.models:
            Address.parse(f"1/rollouts@{name}")
        for text in self.overrides:
            if (stage := Address.parse(text).stage) not in type(self).model_fields:
                raise ValueError(f"overrides names {text!r}, but there is no table [{stage}]")
        return self
