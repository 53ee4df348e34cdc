"""Find stages by name: shipped ones, and those of other packages by entry point."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from pydantic import Field, create_model

from treadle.core.config import Section
from treadle.core.errors import ConfigError, closest
from treadle.core.plugins import entry_point_places, from_module
from treadle.core.runs.address import is_stage_name
from treadle.core.tables import CHECKPOINTS, Table
from treadle.stages.entry import StageEntry

SHIPPED: Mapping[str, str] = {
    "questions": "treadle.datagen.questions.entry:QUESTIONS",
    "exploration": "treadle.datagen.exploration.entry:EXPLORATION",
    "index": "treadle.environments.question.index_entry:INDEX",
    "pools": "treadle.datagen.pools.entry:POOLS",
    "conversion": "treadle.datagen.conversion.entry:CONVERSION",
    "sft_rows": "treadle.datagen.sft_rows.entry:SFT_ROWS",
    "sft": "treadle.sft.entry:SFT",
    "rollouts": "treadle.environments.rollouts.entry:ROLLOUTS",
    "scores": "treadle.eval.entry:SCORES",
    "experience": "treadle.rl.experience.entry:EXPERIENCE",
    "preferences": "treadle.rl.preferences.entry:PREFERENCES",
    "candidates": "treadle.rl.candidates.entry:CANDIDATES",
    "advantages": "treadle.rl.advantages.entry:ADVANTAGES",
    "guided_rollouts": "treadle.rl.guided.entry:GUIDED_ROLLOUTS",
    "dpo": "treadle.rl.dpo.entry:DPO",
    "selection": "treadle.rl.selection.entry:SELECTION",
    "rl": "treadle.rl.training.entry:RL",
    "report": "treadle.report.entry:REPORT",
}
"""Name of a stage -> import path of its entry, in the order of a flow.

Import paths are text, so that this module need not import all stages."""

ENTRY_POINT_GROUP = "treadle.stages"
"""Group of entry points; each is a `StageEntry`, and its name is the name of its stage."""


def other_names() -> list[str]:
    """Return the names of the stages of other packages."""
    return [name for name in entry_point_places(ENTRY_POINT_GROUP) if name not in SHIPPED]


def stage_names() -> list[str]:
    """Return the names of all stages, without loading any."""
    return [*SHIPPED, *other_names()]


@functools.cache
def stage_entries() -> Mapping[str, StageEntry]:
    """Return all entries by name; this also registers the tables that stages produce.

    Raises ConfigError, also if the tables that stages of other packages read or produce do not match those of others.
    """
    places = entry_point_places(ENTRY_POINT_GROUP)
    if taken := places.keys() & SHIPPED.keys():
        name = min(taken)
        raise ConfigError(f"{places[name]} cannot be the stage {name}: this name is that of a shipped stage; rename it")
    places |= SHIPPED
    entries = {name: _load(name, places[name]) for name in stage_names()}
    _check_tables(entries)
    return entries


def _check_tables(entries: Mapping[str, StageEntry]) -> None:
    """Raise ConfigError for a table that two stages declare differently, or that is read but never produced."""
    tables: dict[str, tuple[str, Table]] = {}
    for name, entry in entries.items():
        for table in (*entry.stage.produces, *entry.stage.telemetry):
            other, known = tables.setdefault(table.kind, (name, table))
            if known != table:
                raise ConfigError(
                    f"stage {name} declares another table {table.kind!r} than stage {other}; give it another name"
                )
    for name in entries.keys() - SHIPPED.keys():
        if unknown := [kind for kind in entries[name].stage.consumes.values() if kind not in tables]:
            raise ConfigError(
                f"stage {name} reads the table {unknown[0]!r}, which no stage produces; there are "
                f"{', '.join(sorted(tables))}"
            )


def tables_of_others() -> type[Section]:
    """Return a section with the configuration tables of the stages of other packages. Raises ConfigError."""
    places = entry_point_places(ENTRY_POINT_GROUP)
    entries = [_load(name, places[name]) for name in other_names()]
    fields: dict[str, Any] = {
        entry.name: (entry.table, Field(entry.table(), description=f"Stage `{entry.name}`: {entry.description}"))
        for entry in entries
        if entry.table is not None
    }
    made: type[Section] = create_model("TablesOfOthers", __base__=Section, **fields)
    return made


def stage_entry(name: str) -> StageEntry:
    """Return the entry of a stage; raise ConfigError if there is none."""
    entries = stage_entries()
    if name not in entries:
        raise ConfigError(f"there is no stage {name!r}{closest(name, entries)}; the stages are {', '.join(entries)}")
    return entries[name]


def makes_checkpoint(stage: str) -> bool:
    """Return whether a stage produces trained models."""
    entry = stage_entries().get(stage)
    return entry is not None and any(table.kind == CHECKPOINTS.kind for table in entry.stage.produces)


def _load(name: str, place: str) -> StageEntry:
    if not is_stage_name(name):
        raise ConfigError(f"the entry point {name!r} of {ENTRY_POINT_GROUP} has no name of a stage; use a-z and _")
    module, _, attribute = place.partition(":")
    entry = from_module(module, attribute, f"stage {name}")
    if not isinstance(entry, StageEntry):
        raise ConfigError(f"the entry point {name} of {ENTRY_POINT_GROUP}: {place} is no StageEntry")
    found: StageEntry = entry
    table: Any = entry.table
    problem = ""
    if entry.name != name:
        problem = f"is the stage {entry.name!r}; give both the same name"
    elif not isinstance(entry.qualifiers, tuple) or not {*entry.qualifiers} <= {"model", "phase"}:
        problem = 'has `qualifiers` that are no tuple of "model" and "phase"'
    elif table is not None and not (isinstance(table, type) and issubclass(table, Section)):
        problem = "has a `table` that is not derived from treadle.api.Section"
    elif table is not None and (keys := [key for key, one in table.model_fields.items() if one.is_required()]):
        problem = f"has a table whose key {keys[0]!r} has no default; give it one"
    if problem:
        raise ConfigError(f"the entry point {name} of {ENTRY_POINT_GROUP}: {place} {problem}")
    return found
