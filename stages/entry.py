"""Define the declaration of a stage to flows: its table, settings, inputs, models and deployment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from treadle.core.config import Section
from treadle.core.llm.config import ModelSettings
from treadle.core.runs.address import Address
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Stage
from treadle.stages.plan import Plan
from treadle.stages.report import StageReport

Inputs = Mapping[str, tuple[Address, ...]]
"""Instances whose tables are read, by the name of the input."""


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model that a table of the configuration names.

    Attributes:
        key: Key that names it, within the table.
        name: Name under `models`; None if the key is not set.
        is_helper: Whether it only helps other models, so that by default its own rollouts are not collected.
    """

    key: str
    name: str | None
    is_helper: bool = True


def _no_models(table: Any) -> Iterable[NamedModel]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEntry:
    """Declaration of a stage to flows; `treadle.stages.registry` finds it by the stage's name.

    Attributes:
        stage: The stage.
        table: Class of the stage's table in the configuration, which has the stage's name; None without a table.
        settings: Function that returns the settings of an instance, from the plan of its iteration and its address;
            raises ConfigError.
        inputs: Function that returns the instances that an instance reads, from the same arguments.
        qualifiers: Kind of the qualifiers in its addresses: `model` for an instance per model, `phase` for one per
            phase.
        start_key: Key of the table with the model that training starts from; empty if the stage trains no policy.
        models: Function that returns the models that the table names.
        report: Function from the record of a finished instance, its run, and the models of the run's configuration
            (prices may have changed since) to its summary; None without one.
        description: One sentence for its deployment.
        on_gpu: Whether its deployment polls the queue of GPU machines.
    """

    stage: Stage
    table: type[Section] | None = None
    settings: Callable[[Plan, Address], Section]
    inputs: Callable[[Plan, Address], Inputs]
    qualifiers: tuple[Literal["model", "phase"], ...] = ()
    start_key: str = ""
    models: Callable[[Any], Iterable[NamedModel]] = _no_models
    report: Callable[[StageRecord, Run, Mapping[str, ModelSettings]], StageReport | None] | None = None
    description: str
    on_gpu: bool = False

    @property
    def name(self) -> str:
        """Name of the stage."""
        return self.stage.name
