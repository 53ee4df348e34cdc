"""Open the environment `question`: its tools, shared by all episodes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from treadle.agent.contract import EpisodeOptions, Outcome, Task
from treadle.agent.dialects.tags import TagDialect
from treadle.agent.model_sessions import ModelSession, check_sampling
from treadle.agent.role import RoleModel
from treadle.agent.tools.outcome import Tool
from treadle.agent.tools.settings import ToolResources
from treadle.agent.tools.source import ToolSource
from treadle.agent.tools.summarizer import Summarizer
from treadle.core.errors import ConfigError
from treadle.environments.question.episode import QuestionEpisode, shared_tools
from treadle.environments.question.settings import QuestionSettings
from treadle.environments.question.tools import make_tools, sandbox_facts
from treadle.environments.stored_rollout import StoredRollout
from treadle.environments.tools.calls import open_sources, source_facts
from treadle.environments.types import Resources, Traits, equal_options


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
        """Treat all rollouts of a group alike."""
        return equal_options(size, seed)


class QuestionType:
    """Type of environments in which questions with gold answers are answered with tools."""

    name = "question"
    settings = QuestionSettings

    def traits(self, settings: QuestionSettings) -> Traits:
        """See `EnvironmentType`."""
        # Tools may read the payload of a task, for example the files of a workspace.
        is_tags = isinstance(settings.turn_dialect, TagDialect)
        return Traits(
            resume="replay",
            forks=is_tags,
            forks_messages=not any(tool.keeps_state and tool.max_calls != 0 for tool in settings.tools.values()),
            has_answers=True,
            writes_messages=not is_tags,
            reads_payload=bool(settings.tools),
        )

    async def tasks(self, settings: QuestionSettings, split: str, seed: int) -> AsyncIterator[Mapping[str, Any]]:
        """Yield nothing; questions come from files."""
        rows: tuple[Mapping[str, Any], ...] = ()
        for row in rows:
            yield row

    @contextlib.asynccontextmanager
    async def open(self, settings: QuestionSettings, resources: Resources) -> AsyncIterator[QuestionRuntime]:
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

    def replaying(self, settings: QuestionSettings) -> QuestionRuntime:
        """Return a runtime without tools: a recorded call is only counted."""
        return QuestionRuntime(settings, {})

    async def score(self, settings: QuestionSettings, task: Task, rollout: StoredRollout) -> Outcome | None:
        """Return None: the rules and judges of `scores` compare with the gold answers."""
        return None

    def facts(self, settings: QuestionSettings) -> dict[str, str]:
        """Return isolation, Python and package versions of the sandbox; empty without the Python tool."""
        return sandbox_facts(settings)


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
