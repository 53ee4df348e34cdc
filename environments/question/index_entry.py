"""Declare the stage `index` to flows: it builds the index that the environment's search reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treadle.core.errors import ConfigError
from treadle.core.runs.address import Address
from treadle.core.runs.stage import Stage, StageContext
from treadle.retriever.config import IndexSettings
from treadle.retriever.tables import INDEXES
from treadle.stages.entry import StageEntry
from treadle.stages.plan import Plan


def _settings(plan: Plan, address: Address) -> IndexSettings:
    environments = plan.environments().values()
    tools = [one.search_tool for one in environments if one.search_tool is not None]
    own = [tool for tool in tools if tool.service is None and tool.uses_local]
    if not own:
        at_services = any(tool.service is not None for tool in tools)
        searches = {"at services": at_services, "the web": any(one.searches_web for one in environments)}
        where = " and ".join(name for name, is_searched in searches.items() if is_searched) or "nowhere"
        raise ConfigError(f"{address}: this run searches {where}, so it has no index of its own")
    first, *others = [
        IndexSettings(**{name: getattr(tool, name) for name in IndexSettings.model_fields}) for tool in own
    ]
    if any(other != first for other in others):
        raise ConfigError(
            f"{address}: the environments of this run search {len(own)} corpora; leave the stage out, then rollouts "
            "build the index of each"
        )
    return first.with_digests()


def _run(context: StageContext) -> Mapping[str, Any]:
    from treadle.retriever.stage import run_index

    return run_index(context)


INDEX_STAGE = Stage(name="index", version=1, settings=IndexSettings, produces=(INDEXES,), run=_run)
INDEX = StageEntry(
    stage=INDEX_STAGE,
    settings=_settings,
    inputs=lambda plan, address: {},
    description="Build the search index on the machine of this worker; rollouts there find it.",
)
