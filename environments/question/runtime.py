"""Hold the open tools of the environment `question`, shared by all episodes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

from treadle.agent.contract import EpisodeOptions, Task
from treadle.agent.model_sessions import ModelSession, check_sampling
from treadle.agent.role import RoleModel
from treadle.agent.tools.outcome import Tool
from treadle.agent.tools.settings import ToolResources
from treadle.agent.tools.source import ToolSource
from treadle.agent.tools.summarizer import Summarizer
from treadle.core.errors import ConfigError
from treadle.environments.question.episode import QuestionEpisode, shared_tools
from treadle.environments.question.settings import QuestionSettings
from treadle.environments.question.tools import make_tools
from treadle.environments.tools.calls import open_sources, source_facts
from treadle.environments.types import Resources, equal_options


@dataclass(frozen=True, slots=True)
class QuestionRuntime:
    """Open tools; see `treadle.environments.types.EnvironmentRuntime`."""

    settings: QuestionSettings
    tools: Mapping[str, Tool]
    sources: Mapping[str, ToolSource] = field(default_factory=dict)
    _all: Mapping[str, ToolSource] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_all", {**shared_tools(self.tools), **self.sources})

    def facts(self) -> dict[str, str]:
        """See `EnvironmentRuntime`."""
        return source_facts(self.sources)

    def episode(self) -> QuestionEpisode:
        """Return the episode of one rollout."""
        return QuestionEpisode(self.settings, {}, self._all)

    async def group_options(self, task: Task, size: int, seed: int) -> Sequence[EpisodeOptions]:
        """Return the same options for all rollouts of a group."""
        return equal_options(size, seed)


@contextlib.asynccontextmanager
async def open_tools(settings: QuestionSettings, resources: Resources) -> AsyncIterator[QuestionRuntime]:
    """Open the enabled tools. Raises ToolError."""
    summarizer = _summarizer(settings, resources.summarizer)
    async with contextlib.AsyncExitStack() as stack:
        tools = {}
        for tool in make_tools(settings, summarizer, resources.store, misses_are_empty=resources.misses_are_empty):
            tools[tool.name] = await stack.enter_async_context(tool)
        sources = await stack.enter_async_context(
            open_sources(settings.tools, ToolResources(resources.store), taken=tools)
        )
        yield QuestionRuntime(settings, tools, sources)


def _summarizer(settings: QuestionSettings, session: ModelSession | None) -> Summarizer | None:
    if settings.summarizer is None:
        return None
    if session is None:
        raise ConfigError(
            f"environment.search.summarizer names {settings.summarizer}, but the stage was given no such model"
        )
    check_sampling("summarizer", session.name, settings.search.summarizer_sampling, session.facts)
    # Without a codec the server renders the messages, so there is no renderer.
    model = RoleModel(
        "summarizer",
        session.name,
        session.meter,
        settings.search.summarizer_sampling,
        session.codec,
        max_model_len=session.facts.max_model_len,
    )
    return Summarizer(model, added_tokens=session.tokenizer.added_tokens if session.tokenizer else frozenset())
