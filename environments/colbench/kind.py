"""Define the type `colbench/backend`: dialogues about a program with a person who knows the reference."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treadle.agent.contract import EpisodeOptions, Outcome, Task
from treadle.agent.role import RoleModel
from treadle.environments.colbench.episode import BackendEpisode
from treadle.environments.colbench.settings import HUMAN, ColbenchSettings
from treadle.environments.colbench.task import hidden_sentence
from treadle.environments.stored_rollout import StoredRollout
from treadle.environments.types import Resources, Traits, equal_options


@dataclass(frozen=True, slots=True)
class BackendRuntime:
    """Open environment; see `treadle.environments.types.EnvironmentRuntime`."""

    settings: ColbenchSettings
    human: RoleModel | None

    def facts(self) -> dict[str, str]:
        """See `EnvironmentRuntime`."""
        return {"profile": self.settings.profile}

    def episode(self) -> BackendEpisode:
        """Return the episode of one rollout."""
        return BackendEpisode(self.settings, self.human)

    async def group_options(self, task: Task, size: int, seed: int) -> Sequence[EpisodeOptions]:
        """Return the same options for all rollouts of a group."""
        return equal_options(size, seed)


class BackendType:
    """Type of dialogues in which an agent finds out by questions which program a person needs."""

    name = "colbench/backend"
    settings = ColbenchSettings

    def traits(self, settings: ColbenchSettings) -> Traits:
        """See `EnvironmentType`."""
        return Traits(resume="replay", roles=settings.role_names, scorer="programs")

    async def tasks(self, settings: ColbenchSettings, split: str, seed: int) -> AsyncIterator[Mapping[str, Any]]:
        """Yield nothing; tasks come from files."""
        rows: tuple[Mapping[str, Any], ...] = ()
        for row in rows:
            yield row

    @contextlib.asynccontextmanager
    async def open(self, settings: ColbenchSettings, resources: Resources) -> AsyncIterator[BackendRuntime]:
        """Open nothing: the person is a model of the run."""
        yield BackendRuntime(settings, resources.roles.get(HUMAN))

    def replaying(self, settings: ColbenchSettings) -> None:
        """Return None: stored turns cannot be replayed, since replies of the person are not recorded as calls."""

    async def score(self, settings: ColbenchSettings, task: Task, rollout: StoredRollout) -> Outcome | None:
        """Return None: the scorer `programs` decides."""
        return None

    def hidden_information(self, settings: ColbenchSettings, task: Task) -> str | None:
        """Return a sentence that states the reference as the final answer, for the critic. Raises BadTask."""
        return hidden_sentence(task.payload)

    def facts(self, settings: ColbenchSettings) -> dict[str, str]:
        """Return no facts for the record of the stage."""
        return {}
