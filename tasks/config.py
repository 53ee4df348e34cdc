"""Define the configuration of a run: one table per stage, the models, and per-instance overrides."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, WithJsonSchema, model_validator

from treadle.agent.contract import DEFAULT_ENVIRONMENT
from treadle.core.config import Growing, Operational, Revisable, Section, T_Section, validate, with_changes
from treadle.core.errors import ConfigError
from treadle.core.llm.config import ModelSettings
from treadle.core.runs.address import Address, phase_of
from treadle.core.runs.shards import MAX_SHARDS
from treadle.datagen.pools.settings import PoolOptions
from treadle.datagen.questions.sources import QuestionsSettings
from treadle.datagen.sft_rows.settings import SftRowsOptions
from treadle.environments.question.settings import QuestionSettings
from treadle.environments.registry import AnyEnvironment
from treadle.environments.rollouts.settings import RolloutOptions
from treadle.environments.scorers.registry import AnyScorer, check_entry_names, scorer_named
from treadle.environments.settings import EnvironmentSettings
from treadle.eval.config import ReportSettings, ScoresOptions
from treadle.rl.config import RlOptions
from treadle.rl.curriculum import CurriculumSettings
from treadle.rl.selection.settings import SelectionOptions
from treadle.sft.config import SftOptions
from treadle.stages.recipes.calibrate import Calibrate
from treadle.stages.recipes.registry import AnyRecipe
from treadle.stages.registry import makes_checkpoint, other_names, stage_entries, stage_names, tables_of_others

if TYPE_CHECKING:
    _Tables = Section
else:
    _Tables = tables_of_others()

FlowStage = Annotated[
    str,
    WithJsonSchema({"type": "string", "enum": [name for name in stage_names() if name not in ("questions", "index")]}),
]


_ENVIRONMENT_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")


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


class TreadleConfig(_Tables):
    """Configuration of one run. Written once as `config.json` when the run is created; later changes that would change
    results are refused.
    """

    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of every random choice in the run."""
    flow: FlowSettings = FlowSettings()
    """Stages, models and iterations that make up the flow."""
    models: Growing[dict[str, ModelSettings]] = {}
    """Models by name. The name appears in addresses (`1/rollouts@<name>`) and in reports."""
    questions: QuestionsSettings = QuestionsSettings()
    """Stage `questions`: where questions come from and how they are checked."""
    environment: AnyEnvironment = QuestionSettings()
    """Prompt, tools and limits of the agent, in data generation, training and evaluation."""
    environments: dict[str, AnyEnvironment] = {}
    """Further environments, by the name that `environment` of a source of questions refers to: docs/guides/mixtures.md.
    """
    pools: PoolOptions = PoolOptions()
    """Stage `pools`: the self-evolving data flywheel."""
    sft_rows: SftRowsOptions = SftRowsOptions()
    """Stage `sft_rows`: which trajectories become rows for fine-tuning."""
    sft: SftOptions = SftOptions()
    """Stage `sft`: how a model is fine-tuned on these rows."""
    selection: SelectionOptions = SelectionOptions()
    """Stage `selection`: which questions a phase of reinforcement learning trains on."""
    rl: RlOptions = RlOptions()
    """Stage `rl`: how a policy is trained in one phase of reinforcement learning."""
    curriculum: CurriculumSettings = CurriculumSettings()
    """Phases of reinforcement learning."""
    rollouts: RolloutOptions = RolloutOptions()
    """Stage `rollouts`: number of rollouts per question, and how they are sampled."""
    scorers: Revisable[dict[str, AnyScorer]] = {}
    """Scorers of your own, by the name that `scorer` of a source or benchmark refers to."""
    scores: ScoresOptions = ScoresOptions()
    """Stage `scores`: how rollouts are scored."""
    report: Revisable[ReportSettings] = ReportSettings()
    """Stage `report`: what the report compares and averages."""
    overrides: dict[str, dict[str, Any]] = {}
    """Keys of a stage's table that differ for one instance, by address: `overrides."1/rollouts@base".max_questions =
    20`. A `preset` here replaces the keys of the table that the preset sets.
    """

    @model_validator(mode="after")
    def check_names(self) -> TreadleConfig:
        """Raise ValueError if a key names a model, table or address that does not exist."""
        for key, name in self._named_models():
            if name is not None and name not in self.models:
                raise ValueError(f"{key} names {name!r}, which is not under [models]; add [models.{name}]")
        for name in self.models:
            Address.parse(f"1/rollouts@{name}")
            if phase_of(name) is not None:
                raise ValueError(f"models.{name}: this name stands for the policy of a phase; choose another one")
        if taken := [name for name in other_names() if name in TreadleConfig.__annotations__]:
            raise ValueError(f"a package adds the stage {taken[0]!r}, the name of a table of all runs; rename it")
        self._check_environments()
        check_entry_names(self.scorers)
        for key, name in self.questions.named_scorers():
            try:
                scorer_named(name, self.scorers)
            except ConfigError as error:
                raise ValueError(f"{key}: {error}") from None
        for text in self.overrides:
            if (stage := Address.parse(text).stage) not in type(self).model_fields:
                raise ValueError(f"overrides names {text!r}, but there is no table [{stage}]")
        return self

    def _check_environments(self) -> None:
        """Raise ValueError for a name that cannot be one, and for a source that names another environment."""
        for name in self.environments:
            if name == DEFAULT_ENVIRONMENT:
                raise ValueError(f"environments.{name}: this name stands for [environment]; write it there")
            if not _ENVIRONMENT_NAME.fullmatch(name):
                raise ValueError(
                    f"environments.{name[:60]}: a name has 1 to 40 lower-case letters, digits, - and _, from a letter"
                )
        for number, source in enumerate(self.questions.sources):
            if source.environment not in (DEFAULT_ENVIRONMENT, *self.environments):
                raise ValueError(
                    f"questions.sources[{number}].environment names {source.environment!r}, which is not under "
                    f"[environments]; add [environments.{source.environment}]"
                )

    def _named_models(self) -> Iterator[tuple[str, str | None]]:
        """Yield each key that names a model, and the name."""
        yield from (("flow.models", name) for name in self.flow.models)
        tables = {"environment": self.environment}
        tables |= {f"environments.{name}": one for name, one in self.environments.items()}
        for key, environment in tables.items():
            yield f"{key}.search.summarizer", environment.summarizer_name
            yield from ((f"{key}.roles.{role}.model", one.model) for role, one in environment.role_models.items())
        for name, entry in stage_entries().items():
            if entry.table is not None:
                yield from ((f"{name}.{one.key}", one.name) for one in entry.models(getattr(self, name)))
        yield "curriculum.sampling_model", self.curriculum.sampling_model


def table_of(config: TreadleConfig, address: Address) -> Section:
    """Return the configuration table of an instance, before its overrides."""
    if address.stage == "rollouts" and phase_of(address.qualifier) is not None:
        return config.curriculum.rollouts
    table: Section = getattr(config, address.stage)
    return table


def overridden(config: TreadleConfig, address: Address, table: T_Section) -> T_Section:
    """Return the table with the overrides of one instance applied; raise ConfigError for unknown keys.

    A preset in the overrides replaces the table's keys; keys given next to it take precedence over the preset.
    """
    changes = config.overrides.get(str(address))
    if changes is None:
        return table
    return validate(type(table), with_changes(table, changes), where=f'overrides."{address}"')


def environments_in_use(config: TreadleConfig) -> dict[str, EnvironmentSettings]:
    """Return the environments that tasks of the configured sources belong to, by name."""
    all_of_them = {DEFAULT_ENVIRONMENT: config.environment, **config.environments}
    return {name: all_of_them[name] for name in config.questions.environment_names()}


def mixture_of(config: TreadleConfig) -> dict[str, Any]:
    """Return the fields of `MixedSettings`: the environments in use, with the digests of their search corpora.

    A default environment that no source uses is left at its defaults. Raises DataError for a missing file.
    """
    found = {name: _with_corpus_digest(one) for name, one in environments_in_use(config).items()}
    return {"environment": found.pop(DEFAULT_ENVIRONMENT, QuestionSettings()), "environments": found}


def _with_corpus_digest(environment: EnvironmentSettings) -> EnvironmentSettings:
    search = environment.search_tool
    return environment if search is None else environment.with_search(search.with_digests())
