"""Declare the stage `index` to flows: it builds the index that the environment's search reads."""

from __future__ import annotations

from treadle.core.errors import ConfigError
from treadle.core.runs.address import Address
from treadle.retriever.config import IndexSettings
from treadle.retriever.stage import INDEX_STAGE
from treadle.stages.entry import StageEntry
from treadle.stages.plan import Plan


def _settings(plan: Plan, address: Address) -> IndexSettings:
    search = plan.environment.search_tool
    if search is None or search.service is not None or not search.uses_local:
        at_services = search is not None and search.service is not None
        searches = {"at services": at_services, "the web": plan.environment.searches_web}
        where = " and ".join(name for name, is_searched in searches.items() if is_searched) or "nowhere"
        raise ConfigError(f"{address}: this run searches {where}, so it has no index of its own")
    return IndexSettings(**{name: getattr(search, name) for name in IndexSettings.model_fields}).with_digests()


INDEX = StageEntry(
    stage=INDEX_STAGE,
    settings=_settings,
    inputs=lambda plan, address: {},
    description="Build the search index on the machine of this worker; rollouts there find it.",
)
