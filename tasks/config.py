"""The whole configuration of a run: one table per stage, the models, and how instances differ from the tables."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from treadle.agent.config import EnvironmentSettings
from treadle.agent.rollouts import RolloutOptions
from treadle.core.config import Growing, Operational, Revisable, Section, T_Section, validate, with_changes
from treadle.core.llm.config import ModelSettings
from treadle.core.shards import MAX_SHARDS
from treadle.core.stage import Address
from treadle.datagen.pools_settings import PoolOptions
from treadle.datagen.question_sources import QuestionsSettings
from treadle.datagen.sft_rows_settings import SftRowsOptions
from treadle.eval.config import ReportSettings, ScoresOptions
from treadle.rl.config import RlOptions
from treadle.rl.curriculum import CurriculumSettings, phase_of
from treadle.rl.selection_settings import SelectionOptions
from treadle.sft.config import SftOptions

FlowStage = Literal["pools", "sft_rows", "sft", "selection", "rl", "rollouts", "scores", "report"]


class FlowSettings(Section):
    """What one turn of the flow does."""

    stages: tuple[FlowStage, ...] = ("rollouts", "scores", "report")
    """Stages of the flow besides `questions`: `pools` and `sft_rows` make fine-tuning data, `sft` trains on it, `rl`
    goes through all phases of the curriculum (rollouts, scores, selection and training of each), `selection` without
    `rl` through the first one up to its selection, the others measure models. Any stage can also be run by itself."""
    models: tuple[str, ...] = ()
    """Models that answer the questions, by their names under `models`; each becomes `rollouts@<model>` and
    `scores@<model>`, and the report compares them. Empty: all but the summarizer, the judges of scores, and those that
    only help to make pools, in their order."""
    iterations: Operational[int] = Field(default=1, ge=1, le=100)
    """Turns of the whole loop. Each one after the first starts from the last checkpoint of the one before, so that some
    stage has to train; a run may get further ones. `1/sft`, where a table names it, is `2/sft` in the second one."""

    device_wait_s: Operational[float] = Field(default=86_400.0, ge=0.0)
    """How long a stage waits for GPUs that another process of this machine has, before it fails."""

    workers: Operational[int] = Field(default=0, ge=0, le=MAX_SHARDS)
    """Flow runs of the deployment `work/shards` that a flow run asks for to help it with a stage whose `shards` are
    above 1. Without Prefect it does nothing: there one starts `treadle work` oneself."""

    @property
    def last_training(self) -> Literal["rl", "sft"] | None:
        """The stage with the last checkpoint of an iteration, where one is trained."""
        return "rl" if "rl" in self.stages else "sft" if "sft" in self.stages else None

    @model_validator(mode="after")
    def _check_iterations(self) -> FlowSettings:
        if self.iterations > 1 and self.last_training is None:
            raise ValueError(
                f"iterations = {self.iterations}, but no stage of the flow trains, so that each of them would be the "
                "same; add sft or rl to flow.stages"
            )
        return self


class TreadleConfig(Section):
    """One run. Written once as `config.json` when the run is made; later changes are refused if they would change
    results."""

    seed: int = Field(default=0, ge=0, lt=2**31)
    """Every random choice of the run derives from it."""
    flow: FlowSettings = FlowSettings()
    """Which instances the flow is made of."""
    models: Growing[dict[str, ModelSettings]] = {}
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
    selection: SelectionOptions = SelectionOptions()
    """Stage `selection`: which questions a phase of reinforcement learning is trained on."""
    rl: RlOptions = RlOptions()
    """Stage `rl`: how a policy is reinforced in one phase."""
    curriculum: CurriculumSettings = CurriculumSettings()
    """Phases of reinforcement learning."""
    rollouts: RolloutOptions = RolloutOptions()
    """Stage `rollouts`: how many trajectories, and how they are sampled."""
    scores: ScoresOptions = ScoresOptions()
    """Stage `scores`."""
    report: Revisable[ReportSettings] = ReportSettings()
    """Stage `report`."""
    overrides: dict[str, dict[str, Any]] = {}
    """Keys of a stage's table that differ for one instance, by address:
    `overrides."1/rollouts@base".max_questions = 20`. A `preset` among them replaces those keys of the table that it
    has."""

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
        voter = self.scores.redundancy.model
        named = [("scores.judges.models", name) for name in self.scores.judges.models]
        for key, name in (*named, *((("scores.redundancy.model", voter),) if voter is not None else ())):
            if name not in self.models:
                raise ValueError(f"{key} names {name!r}, which is not under [models]; add [models.{name}]")
        sampling = self.curriculum.sampling_model
        if sampling is not None and sampling not in self.models:
            raise ValueError(
                f"curriculum.sampling_model names {sampling!r}, which is not under [models]; add [models.{sampling}]"
            )
        for name in self.models:
            Address.parse(f"1/rollouts@{name}")
            if phase_of(name) is not None:
                raise ValueError(f"models.{name}: this name stands for the policy of a phase; choose another one")
        for text in self.overrides:
            if (stage := Address.parse(text).stage) not in type(self).model_fields:
                raise ValueError(f"overrides names {text!r}, but there is no table [{stage}]")
        return self


def table_of(config: TreadleConfig, address: Address) -> Section:
    """The table that an instance goes by, before its overrides."""
    if address.stage == "rollouts" and phase_of(address.qualifier) is not None:
        return config.curriculum.rollouts
    table: Section = getattr(config, address.stage)
    return table


def overridden(config: TreadleConfig, address: Address, table: T_Section) -> T_Section:
    """A table with the keys that differ for one instance; raises ConfigError for keys that it has not.

    A preset that is named for the instance replaces the table's keys; keys beside it win.
    """
    changes = config.overrides.get(str(address))
    if changes is None:
        return table
    return validate(type(table), with_changes(table, changes), where=f'overrides."{address}"')


def environment_of(config: TreadleConfig) -> EnvironmentSettings:
    """The environment with the digest of what it searches; raises DataError for a missing file."""
    environment = config.environment
    if not environment.call_limit("search"):
        return environment
    return environment.model_copy(update={"search": environment.search.with_digests()})
