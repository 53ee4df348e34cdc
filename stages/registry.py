"""Find stages by name: shipped ones, and those of other packages by entry point."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from pydantic import Field, create_model

from treadle.core.config import Section
from treadle.core.errors import ConfigError
from treadle.core.plugins import entry_point_places, from_module
from treadle.core.runs.address import is_stage_name
from treadle.core.tables import CHECKPOINTS
from treadle.stages.entry import StageEntry

SHIPPED: Mapping[str, str] = {
    "questions": "treadle.datagen.questions.entry:QUESTIONS",
    "index": "treadle.environments.question.index_entry:INDEX",
    "pools": "treadle.datagen.pools.entry:POOLS",
    "sft_rows": "treadle.datagen.sft_rows.entry:SFT_ROWS",
    "sft": "treadle.sft.entry:SFT",
    "rollouts": "treadle.environments.rollouts.entry:ROLLOUTS",
    "scores": "treadle.eval.entry:SCORES",
    "selection": "treadle.rl.selection.entry:SELECTION",
    "rl": "treadle.rl.training.entry:RL",
    "report": "treadle.report.entry:REPORT",
}
"""Name -> place of the entry, in the order of a flow. Places are text, so that no module imports all of them."""

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
    """Return all entries by name, and with them load the tables that stages produce. Raises ConfigError."""
    places = {**entry_point_places(ENTRY_POINT_GROUP), **SHIPPED}
    return {name: _load(name, places[name]) for name in stage_names()}


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
        raise ConfigError(f"there is no stage {name!r}; the stages are {', '.join(entries)}")
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
    if not isinstance(entry, StageEntry) or entry.name != name:
        raise ConfigError(
            f"the entry point {name} of {ENTRY_POINT_GROUP} stands for {place}, which is no StageEntry of this name"
        )
    return entry
