"""Provide the `Plan` that stage entries read: a configuration as one iteration sees it.

Settings and inputs of an instance are derived from the configuration as its iteration sees it, so that other modules
need no special case for iterations. Documented in docs/behaviour/iterations.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from treadle.core.config import T_Section
from treadle.core.errors import ConfigError, closest
from treadle.core.llm.config import ModelSettings
from treadle.core.runs.address import Address, phase_name, phase_of
from treadle.datagen.sft_rows.row_source import rolled_out_policy
from treadle.environments.mixture import Environments
from treadle.environments.scorers.base import Scorer
from treadle.environments.scorers.registry import SCORERS, NamesScorers, reads_all, scorer_named
from treadle.environments.settings import EnvironmentSettings
from treadle.rl.phases import phase_model, phase_policy, sampling_model
from treadle.stages.models import with_weights
from treadle.stages.plan import SampledModel
from treadle.stages.registry import makes_checkpoint, stage_entries, stage_entry
from treadle.tasks.config import TreadleConfig, environments_in_use, mixture_of, overridden, table_of


@dataclass(frozen=True, slots=True)
class FlowPlan:
    """Implementation of `treadle.stages.plan.Plan` for one configuration."""

    config: TreadleConfig

    @property
    def seed(self) -> int:
        """See `Plan`."""
        return self.config.seed

    @property
    def models(self) -> Mapping[str, ModelSettings]:
        """See `Plan`."""
        return self.config.models

    def environments(self) -> Environments:
        """See `Plan`."""
        return environments_in_use(self.config)

    def environment(self, name: str) -> EnvironmentSettings:
        """See `Plan`."""
        known = self.config.named_environments()
        if name not in known:
            raise ConfigError(f"there is no environment {name!r}{closest(name, known)}; add [environments.{name[:60]}]")
        return known[name]

    def scorers(self) -> Mapping[str, Scorer]:
        """See `Plan`."""
        address = Address(self.config.flow.iterations, "questions")
        tables = [self._table(replace(address, stage=stage)) for stage in ("questions", *self.stages)]
        named = {name for table in tables if isinstance(table, NamesScorers) for _, name in table.named_scorers()}
        found = {name: scorer_named(name, self.config.scorers) for name in sorted(named)}
        return {name: scorer for name, scorer in found.items() if name not in SCORERS.shipped or reads_all(scorer)}

    def _table(self, address: Address) -> Any:
        """Return the table of an instance with its overrides; None if its stage has none."""
        has_table = stage_entry(address.stage).table is not None
        return overridden(self.config, address, table_of(self.config, address)) if has_table else None

    @property
    def stages(self) -> tuple[str, ...]:
        """See `Plan`."""
        return self.config.flow.stages

    @property
    def policy(self) -> str:
        """See `Plan`: the policy of `pools`."""
        return self.config.pools.roles.policy.model or self.compared_models()[0]

    def mixture(self) -> dict[str, Any]:
        """See `Plan`."""
        return mixture_of(self.config)

    def section(self, name: str, kind: type[T_Section]) -> T_Section:
        """See `Plan`."""
        return _of_kind(getattr(self.config, name), kind)

    def options(self, address: Address, kind: type[T_Section]) -> T_Section:
        """See `Plan`."""
        return _of_kind(overridden(self.config, address, table_of(self.config, address)), kind)

    def overridden(self, address: Address, table: T_Section) -> T_Section:
        """See `Plan`."""
        return overridden(self.config, address, table)

    def overrides(self, address: Address) -> Mapping[str, Any]:
        """See `Plan`."""
        return self.config.overrides.get(str(address), {})

    def compared_models(self) -> tuple[str, ...]:
        """See `Plan`: `flow.models`, or by default all models that are not only helpers of others."""
        config = self.config
        tables = [(entry, getattr(config, name)) for name, entry in stage_entries().items() if entry.table is not None]
        helpers = {one.name for entry, table in tables for one in entry.models(table) if one.is_helper}
        for environment in config.named_environments().values():
            helpers |= {environment.summarizer_name, *(role.model for role in environment.role_models.values())}
        others = tuple(name for name in config.models if name not in helpers)
        models = config.flow.models or others or tuple(config.models)
        if not models:
            raise ConfigError("no model is configured: add a [models.<name>] table with its `model` and `endpoints`")
        return models

    def starting_policy(self, iteration: int) -> Address | None:
        """See `Plan`: the last checkpoint of the previous iteration."""
        trained = _trained_policy(self.config)
        return None if iteration == 1 or trained is None else replace(trained, iteration=iteration - 1)

    def sampled(self, address: Address) -> SampledModel:
        """See `Plan`: a phase samples from its policy, and rollouts that become rows from the starting policy."""
        if phase_of(address.qualifier) is not None:
            return SampledModel(sampling_model(self), phase_model(self, address), phase_policy(self, address))
        name, policy = address.qualifier or "", self.starting_policy(address.iteration)
        if policy is None or name != rolled_out_policy(self, address.iteration):
            return SampledModel(name, self.models[name])
        return SampledModel(name, with_weights(self.models[name], str(policy)), (policy,))

    def check_checkpoint(self, made: Address, where: str) -> None:
        """See `Plan`."""
        if not can_be_made(self.config, made) or made.iteration > self.config.flow.iterations:
            last = self.config.curriculum.phases
            raise ConfigError(
                f"{where} = {made}: no instance of this configuration makes it; use 1/sft, or a phase of the "
                f"curriculum: 1/rl@{phase_name(1)} to 1/rl@{phase_name(last)}"
            )


def _of_kind(table: Any, kind: type[T_Section]) -> T_Section:
    if not isinstance(table, kind):
        raise TypeError(f"a table of {type(table).__name__} was read as {kind.__name__}")
    return table


def _trained_policy(config: TreadleConfig) -> Address | None:
    """Return the instance of the first iteration whose checkpoint the second one starts from; None without one."""
    trained = None
    for step in config.flow.recipe.steps:
        for stage in step.stages:
            if stage in config.flow.stages and makes_checkpoint(stage) and stage_entry(stage).start_key:
                phase = phase_name(config.curriculum.phases) if step.each == "phase" else None
                trained = Address(1, stage, step.qualifier or phase)
    return trained


def can_be_made(config: TreadleConfig, made: Address) -> bool:
    """Return whether a stage with this qualifier can make a checkpoint in this configuration."""
    if not makes_checkpoint(made.stage):
        return False
    if "phase" in stage_entry(made.stage).qualifiers:
        phase = phase_of(made.qualifier)
        return phase is not None and phase <= config.curriculum.phases
    steps = [step for step in config.flow.recipe.steps if made.stage in step.stages]
    return made.qualifier in {step.qualifier or None for step in steps} or (not steps and made.qualifier is None)
