"""Hold the open tools of the environment `planning`, shared by all episodes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

from treadle.agent.contract import EpisodeOptions, Task
from treadle.agent.role import RoleModel
from treadle.agent.tools.outcome import Tool
from treadle.agent.tools.schema import ToolSchema
from treadle.agent.tools.settings import ToolResources
from treadle.agent.tools.source import SharedTool, ToolSource
from treadle.environments.planning.calls import PlannedCalls
from treadle.environments.planning.episode import PlanningEpisode
from treadle.environments.planning.places import FILLER
from treadle.environments.planning.settings import SEARCH_TAGS, PlanningSettings
from treadle.environments.planning.tools.opening import make_tools
from treadle.environments.tools.calls import open_sources, source_facts
from treadle.environments.types import Resources, equal_options

_GUARDED = frozenset({*SEARCH_TAGS, "crawl_page"})


@dataclass(frozen=True, slots=True)
class PlanningRuntime:
    """Open tools; see `treadle.environments.types.EnvironmentRuntime`."""

    settings: PlanningSettings
    tools: Mapping[str, Tool]
    sources: Mapping[str, ToolSource] = field(default_factory=dict)
    filler: RoleModel | None = None
    _all: Mapping[str, ToolSource] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        parameters = {name: tag.parameter for name, tag in self.settings.turn_dialect.by_name.items()}
        own = {name: SharedTool(tool, _schema(name, parameters[name])) for name, tool in self.tools.items()}
        object.__setattr__(self, "_all", {**own, **self.sources})

    def facts(self) -> dict[str, str]:
        """See `EnvironmentRuntime`."""
        return source_facts(self.sources)

    def episode(self) -> PlanningEpisode:
        """Return the episode of one rollout."""
        settings = self.settings
        calls = PlannedCalls(
            self._all,
            settings.turn_dialect,
            scheduling=settings.scheduling,
            max_parallel=settings.max_parallel_calls,
            guarded=_GUARDED,
            own_entries=frozenset(self.sources),
            filler=self.filler,
        )
        return PlanningEpisode(settings, calls)

    async def group_options(self, task: Task, size: int, seed: int) -> Sequence[EpisodeOptions]:
        """Return the same options for all rollouts of a group."""
        return equal_options(size, seed)


def _schema(name: str, parameter: str) -> ToolSchema:
    properties = {parameter: {"type": "string"}}
    return ToolSchema(name, "", {"type": "object", "properties": properties, "required": [parameter]})


@contextlib.asynccontextmanager
async def open_tools(settings: PlanningSettings, resources: Resources) -> AsyncIterator[PlanningRuntime]:
    """Open the enabled tools. Raises ToolError."""
    async with contextlib.AsyncExitStack() as stack:
        tools: dict[str, Tool] = {}
        for name, tool in make_tools(settings, resources):
            tools[name] = await stack.enter_async_context(tool)
        sources = await stack.enter_async_context(
            open_sources(settings.tools, ToolResources(resources.store), taken=tools)
        )
        yield PlanningRuntime(settings, tools, sources, resources.roles.get(FILLER))
