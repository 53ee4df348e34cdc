"""Define the type `planning`: agents that plan, and call several tools at once."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from treadle.agent.contract import Outcome, Task
from treadle.environments.planning.settings import PlanningSettings
from treadle.environments.stored_rollout import StoredRollout
from treadle.environments.types import Resources, Traits

if TYPE_CHECKING:
    from treadle.environments.planning.runtime import PlanningRuntime


class PlanningType:
    """Type of environments in which questions with gold answers are answered by agents that plan."""

    name = "planning"
    settings = PlanningSettings

    def traits(self, settings: PlanningSettings) -> Traits:
        """See `EnvironmentType`."""
        return Traits(
            resume="replay",
            has_answers=True,
            writes_messages=False,
            reads_payload=bool(settings.tools),
            roles=settings.role_names,
        )

    async def tasks(self, settings: PlanningSettings, split: str, seed: int) -> AsyncIterator[Mapping[str, Any]]:
        """Yield nothing; questions come from files."""
        rows: tuple[Mapping[str, Any], ...] = ()
        for row in rows:
            yield row

    @contextlib.asynccontextmanager
    async def open(self, settings: PlanningSettings, resources: Resources) -> AsyncIterator[PlanningRuntime]:
        """Open the enabled tools. Raises ToolError."""
        from treadle.environments.planning.runtime import open_tools

        async with open_tools(settings, resources) as runtime:
            yield runtime

    def replaying(self, settings: PlanningSettings) -> PlanningRuntime | None:
        """Return None: turns cannot be replayed without tools, since calls may depend on the results of other calls."""
        return None

    async def score(self, settings: PlanningSettings, task: Task, rollout: StoredRollout) -> Outcome | None:
        """Return None: the rules and judges of `scores` compare with the gold answers."""
        return None

    def facts(self, settings: PlanningSettings) -> dict[str, str]:
        """Return isolation, Python and package versions of the sandbox; empty without the tool `code`."""
        if "code" not in settings.enabled_tools:
            return {}
        from treadle.agent.sandbox.bubblewrap import describe

        return {f"sandbox_{name}": value for name, value in describe(settings.code.sandbox).items()}
