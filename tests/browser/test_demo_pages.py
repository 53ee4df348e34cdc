"""Pages of the sample world in a real Chromium: the human of the demo reads their designs from the pictures."""

from __future__ import annotations

from treadle.agent.browser.renderer import PageRenderer
from treadle.agent.browser.settings import BrowserSettings
from treadle.demo.pages.design import NUM_CARDS, PLACES, SHOPS, page
from treadle.demo.pages.sight import seen_design
from treadle.demo.pages.tasks import drawn_design
from treadle.environments.colbench.frontend.stand_ins import stand_in, with_styles


async def test_design_is_read_from_the_drawn_page() -> None:
    designs = {shop: drawn_design(0, place) for place, shop in enumerate(SHOPS)}
    async with PageRenderer(BrowserSettings(), stand_in) as renderer:
        seen = {shop: seen_design(await renderer.draw(with_styles(page(shop, one)))) for shop, one in designs.items()}
    assert seen == designs
    assert {one.heading for one in designs.values()} == set(PLACES)
    assert {one.num_cards for one in designs.values()} == set(NUM_CARDS)
