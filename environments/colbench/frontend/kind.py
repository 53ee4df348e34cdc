"""Define the type `colbench/frontend`: dialogues about a web page with a person who sees pictures of it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treadle.agent.browser.renderer import PageRenderer
from treadle.agent.contract import EpisodeOptions, Outcome, Task
from treadle.agent.role import RoleModel
from treadle.environments.colbench.frontend.drawing import PageDrawer
from treadle.environments.colbench.frontend.episode import FrontendEpisode
from treadle.environments.colbench.frontend.markup import target_page
from treadle.environments.colbench.frontend.settings import FrontendSettings
from treadle.environments.colbench.frontend.stand_ins import stand_in
from treadle.environments.colbench.settings import HUMAN
from treadle.environments.planning.tools.pictures import PICTURES
from treadle.environments.stored_rollout import StoredRollout
from treadle.environments.types import Resources, Traits, equal_options


@dataclass(frozen=True, slots=True)
class FrontendRuntime:
    """Open environment; see `treadle.environments.types.EnvironmentRuntime`."""

    settings: FrontendSettings
    human: RoleModel | None
    drawer: PageDrawer

    def facts(self) -> dict[str, str]:
        """See `EnvironmentRuntime`."""
        settings = self.settings
        return {"profile": settings.profile, "browser": self.drawer.renderer.product, "styles": settings.styles}

    def episode(self) -> FrontendEpisode:
        """Return the episode of one rollout."""
        return FrontendEpisode(self.settings, self.human, self.drawer)

    async def group_options(self, task: Task, size: int, seed: int) -> Sequence[EpisodeOptions]:
        """Return the same options for all rollouts of a group."""
        return equal_options(size, seed)


class FrontendType:
    """Type of dialogues in which an agent writes a page that a person compares with a target page."""

    name = "colbench/frontend"
    settings = FrontendSettings

    def traits(self, settings: FrontendSettings) -> Traits:
        """See `EnvironmentType`."""
        return Traits(resume="replay", roles=settings.role_names, scorer="similarity")

    async def tasks(self, settings: FrontendSettings, split: str, seed: int) -> AsyncIterator[Mapping[str, Any]]:
        """Yield nothing; tasks come from files."""
        rows: tuple[Mapping[str, Any], ...] = ()
        for row in rows:
            yield row

    @contextlib.asynccontextmanager
    async def open(self, settings: FrontendSettings, resources: Resources) -> AsyncIterator[FrontendRuntime]:
        """Start the browser. Raises SandboxError if there is no browser, or it cannot be isolated."""
        sheet = settings.read_stylesheet()
        store = None if resources.store is None else resources.store(PICTURES)
        async with PageRenderer(settings.browser, stand_in) as renderer:
            drawer = PageDrawer(renderer, sheet, store, settings.is_legacy)
            yield FrontendRuntime(settings, resources.roles.get(HUMAN), drawer)

    def replaying(self, settings: FrontendSettings) -> None:
        """Return None: stored turns cannot be replayed, since replies of the person are not recorded as calls."""

    async def score(self, settings: FrontendSettings, task: Task, rollout: StoredRollout) -> Outcome | None:
        """Return None: the scorer `similarity` decides."""
        return None

    def hidden_information(self, settings: FrontendSettings, task: Task) -> str | None:
        """Return the target's HTML in a sentence, for critics that read text. Raises BadTask."""
        return f"The person of this task wants the following page:\n```html\n{target_page(task.payload)}\n```"

    def facts(self, settings: FrontendSettings) -> dict[str, str]:
        """Return no facts for the record of the stage."""
        return {}
