"""Find stages by name: shipped ones, and those of other packages by entry point."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from treadle.core.errors import ConfigError
from treadle.core.plugins import entry_point_places, from_module
from treadle.core.runs.stage import Stage

SHIPPED: Mapping[str, str] = {
    "questions": "treadle.datagen.questions.stage:QUESTIONS_STAGE",
    "index": "treadle.retriever.stage:INDEX_STAGE",
    "pools": "treadle.datagen.pools.stage:POOLS_STAGE",
    "sft_rows": "treadle.datagen.sft_rows.stage:SFT_ROWS_STAGE",
    "sft": "treadle.sft.stage:SFT_STAGE",
    "rollouts": "treadle.environments.rollouts.stage:ROLLOUTS_STAGE",
    "scores": "treadle.eval.scores:SCORES_STAGE",
    "selection": "treadle.rl.selection.stage:SELECTION_STAGE",
    "rl": "treadle.rl.training.stage:RL_STAGE",
    "report": "treadle.report.stage:REPORT_STAGE",
}
"""Name -> place of the stage, in the order of a flow. Places are text, so that no module imports all of them."""

ENTRY_POINT_GROUP = "treadle.stages"


@functools.cache
def all_stages() -> Mapping[str, Stage]:
    """Return all stages by name, and with them load the tables that they produce. Raises ConfigError."""
    places = {**entry_point_places(ENTRY_POINT_GROUP), **SHIPPED}
    loaded = {name: _load(name, places[name]) for name in (*SHIPPED, *(places.keys() - SHIPPED.keys()))}
    return loaded


def _load(name: str, place: str) -> Stage:
    module, _, attribute = place.partition(":")
    stage = from_module(module, attribute, f"stage {name}")
    if not isinstance(stage, Stage) or stage.name != name:
        raise ConfigError(f"the entry point {name} of {ENTRY_POINT_GROUP} is {place}, which is no stage of this name")
    return stage
