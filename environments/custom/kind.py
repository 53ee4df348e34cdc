"""Make a type of environment from an environment class."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from treadle.agent.contract import EpisodeOptions, Outcome, Task
from treadle.agent.outcome_values import as_outcome
from treadle.agent.role import RoleModel
from treadle.agent.tools.settings import ToolResources
from treadle.agent.tools.source import ToolSource
from treadle.core.errors import ConfigError, ToolError
from treadle.core.untrusted.concealment import exits_as_errors, user_code
from treadle.environments.custom.base import Environment
from treadle.environments.custom.episode import CustomEpisode
from treadle.environments.custom.settings_class import settings_class
from treadle.environments.settings import EnvironmentSettings
from treadle.environments.stored_rollout import StoredRollout
from treadle.environments.tools.calls import EpisodeCalls, open_sources, source_facts
from treadle.environments.types import Resources, Traits, equal_options


@dataclass(frozen=True, slots=True)
class CustomRuntime:
    """Opened environment of an `Environment` subclass; see `treadle.environments.types.EnvironmentRuntime`."""

    environment: type[Environment]
    settings: EnvironmentSettings
    shared: Any
    models: Mapping[str, RoleModel]
    sources: Mapping[str, ToolSource] = field(default_factory=dict)

    def facts(self) -> dict[str, str]:
        """See `EnvironmentRuntime`."""
        return source_facts(self.sources)

    def episode(self) -> CustomEpisode:
        """Return the episode of one rollout."""
        calls = EpisodeCalls(self.sources, self.environment.dialect)
        with exits_as_errors():
            instance = self.environment()
        return CustomEpisode(instance, self.settings, self.shared, self.models, calls)

    async def group_options(self, task: Task, size: int, seed: int) -> Sequence[EpisodeOptions]:
        """Return the same options for all rollouts of a group."""
        return equal_options(size, seed)


class CustomType:
    """Type of environment made from an `Environment` class."""

    def __init__(self, environment: type[Environment]) -> None:
        self.name = environment.__name__
        self.settings = settings_class(environment)
        self._environment = environment

    def traits(self, settings: EnvironmentSettings) -> Traits:
        """See `EnvironmentType`."""
        cls = self._environment
        brings_tasks = cls.tasks.__func__ is not Environment.tasks.__func__  # type: ignore[attr-defined]
        return Traits(
            resume=cls.resume,
            brings_tasks=brings_tasks,
            roles=cls.roles,
            explores=cls.explores,
            scores_references=cls.scores_references,
        )

    def tasks(self, settings: EnvironmentSettings, split: str, seed: int) -> AsyncIterator[Mapping[str, Any]]:
        """See `EnvironmentType`. Raises ConfigError if the class has no async generator."""
        tasks: Any = self._environment.tasks(settings, split, seed)
        if not isinstance(tasks, AsyncIterable):
            raise ConfigError(f"{self.name}.tasks returned a {type(tasks).__name__}: write `async def` with `yield`")
        return aiter(tasks)

    def hidden_information(self, settings: EnvironmentSettings, task: Task) -> str | None:
        """See `EnvironmentType`."""
        return self._environment.hidden_information(settings, task)

    @contextlib.asynccontextmanager
    async def open(self, settings: EnvironmentSettings, resources: Resources) -> AsyncIterator[CustomRuntime]:
        """Open the tools, and the value that episodes of the class share."""
        with exits_as_errors():
            async with (
                open_sources(settings.tools, ToolResources(resources.store)) as sources,
                self._environment.open_shared(settings, resources) as shared,
            ):
                yield CustomRuntime(self._environment, settings, shared, resources.roles, sources)

    def replaying(self, settings: EnvironmentSettings) -> None:
        """Return None: a class cannot replay turns without its live state."""

    def facts(self, settings: EnvironmentSettings) -> dict[str, str]:
        """Return no facts for the record of the stage."""
        return {}

    async def score(self, settings: EnvironmentSettings, task: Task, rollout: StoredRollout) -> Outcome | None:
        """Let a new instance score a rollout; raise ToolError if it takes longer than a rollout may."""
        instance = self._environment()
        instance.prepare(task, settings, None, 0, 0)
        limit_s = settings.rollout_time_s
        scope = asyncio.timeout(limit_s)
        try:
            async with scope:
                with user_code(instance, task.payload):
                    return as_outcome(await instance.score(task, rollout), f"{self.name}.score")
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise ToolError(
                f"{self.name}.score did not return within environment.rollout_time_s = {limit_s:g} s"
            ) from error
