"""Define the configuration of a run: one table per stage, the models, and per-instance overrides."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pydantic import Field, model_validator

from treadle.agent.contract import DEFAULT_ENVIRONMENT
from treadle.core.config import Growing, Revisable, Section, T_Section, validate, with_changes
from treadle.core.errors import ConfigError
from treadle.core.llm.config import ModelSettings
from treadle.core.runs.address import Address, phase_of
from treadle.datagen.configuration import DataTables
from treadle.environments.mixture import MixedSettings
from treadle.environments.mixture import table_of as environment_table
from treadle.environments.rollouts.settings import RolloutOptions
from treadle.environments.scorers.registry import AnyScorer, check_entry_names, scorer_named
from treadle.environments.settings import EnvironmentSettings
from treadle.eval.config import ReportSettings, ScoresOptions
from treadle.rl.configuration import RlTables
from treadle.sft.config import SftOptions
from treadle.stages.registry import other_names, stage_entries, tables_of_others
from treadle.tasks.flow_settings import FlowTables

if TYPE_CHECKING:
    _Tables = Section
else:
    _Tables = tables_of_others()

_ENVIRONMENT_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")


class TreadleConfig(FlowTables, RlTables, DataTables, MixedSettings, _Tables):
    """Configuration of one run. Written once as `config.json` when the run is created; later changes that would change
    results are refused.
    """

    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of every random choice in the run."""
    models: Growing[dict[str, ModelSettings]] = {}
    """Models by name. The name appears in addresses (`1/rollouts@<name>`) and in reports."""
    sft: SftOptions = SftOptions()
    """Stage `sft`: how a model is fine-tuned on the rows of `sft_rows`."""
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
                raise ValueError(f"models.{name}: this name is reserved for the policy of a phase; choose another one")
        if taken := [
            name for name in other_names() if name in {**TreadleConfig.__annotations__, **FlowTables.model_fields}
        ]:
            raise ValueError(f"a package adds the stage {taken[0]!r}, the name of a table of all runs; rename it")
        self._check_environments()
        check_entry_names(self.scorers)
        for key, name in (*self.questions.named_scorers(), *self.exploration.named_scorers()):
            try:
                scorer_named(name, self.scorers)
            except ConfigError as error:
                raise ValueError(f"{key}: {error}") from None
        for text in self.overrides:
            if (stage := Address.parse(text).stage) not in type(self).model_fields:
                raise ValueError(f"overrides names {text!r}, but there is no table [{stage}]")
        self._check_published()
        return self

    def _check_published(self) -> None:
        """Raise ValueError if a preset, which has published figures, would be measured in another way."""
        changed = [changes for text, changes in self.overrides.items() if Address.parse(text).stage == "dpo"]
        presets = [self.dpo.preset, *(changes.get("preset") for changes in changed)]
        preset = next((name for name in presets if name is not None), None)
        for name, scorer in self.scorers.items():
            if preset is not None and scorer.unpublished:
                raise ValueError(
                    f"scorers.{name} has {scorer.unpublished}, whose values cannot be compared with the published "
                    f"figures of the preset {preset}; leave out the preset, or the setting"
                )

    def _check_environments(self) -> None:
        """Raise ValueError for an invalid environment name, and for a source whose environment is not configured."""
        for name in self.environments:
            if name == DEFAULT_ENVIRONMENT:
                raise ValueError(f"environments.{name}: this name is reserved for [environment]; write it there")
            if not _ENVIRONMENT_NAME.fullmatch(name):
                raise ValueError(
                    f"environments.{name[:60]}: a name has 1 to 40 lower-case letters, digits, - and _, and starts "
                    "with a letter"
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
            yield f"{key}.{environment.summarizer_key}", environment.summarizer_name
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
    known = config.named_environments()
    return {name: known[name] for name in config.questions.environment_names()}


def mixture_of(config: TreadleConfig) -> dict[str, Any]:
    """Return the fields of `MixedSettings`: the environments in use, with the digests of their search corpora.

    A default environment that no source uses is left at its defaults. Raises DataError for a missing file.
    """
    found = {name: _with_corpus_digest(name, one) for name, one in environments_in_use(config).items()}
    return {"environment": found.pop(DEFAULT_ENVIRONMENT, MixedSettings().environment), "environments": found}


def _with_corpus_digest(name: str, environment: EnvironmentSettings) -> EnvironmentSettings:
    search = environment.search_tool
    if search is None:
        return environment
    return environment.with_search(search.with_digests(f"{environment_table(name)}.search"))
