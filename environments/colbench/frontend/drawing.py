"""Draw the pages of episodes and store their pictures in the run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from treadle.agent.browser.renderer import PageRenderer
from treadle.core.store.keyed_store import KeyedStore
from treadle.environments.colbench.frontend.markup import with_fixed_pictures
from treadle.environments.colbench.frontend.stand_ins import with_styles
from treadle.environments.planning.tools.pictures import Picture, read_picture


@dataclass(frozen=True, slots=True)
class PageDrawer:
    """Renderer of pages, which replaces random pictures and Tailwind before it draws them.

    Attributes:
        sheet: Text of a style sheet in place of Tailwind's; None to make one for each page.
        store: Store of the run, to which each drawn picture is added; None outside a run.
        legacy: Whether addresses of pictures are replaced as by the published program.
    """

    renderer: PageRenderer
    sheet: str | None
    store: KeyedStore | None
    legacy: bool

    async def draw(self, html: str) -> Picture:
        """Return the picture of a page, after it was stored.

        Raises PageNotDrawn, SandboxError and StorageError.
        """
        fixed = with_fixed_pictures(html, legacy=self.legacy)
        picture = read_picture(await self.renderer.draw(with_styles(fixed, self.sheet)))
        if self.store is not None:
            await asyncio.to_thread(self.store.add, picture.digest, picture.data)
        return picture
