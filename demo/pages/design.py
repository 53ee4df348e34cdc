"""Define the pages of the sample world: four details decide a page, and a request does not mention their values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Place = Literal["left", "middle", "right"]
PLACES: tuple[Place, ...] = get_args(Place)
"""Places of the heading in its panel."""

SHOPS = (
    "bakery", "barber", "bookshop", "butcher", "cinema", "florist", "gallery", "garage", "harbour", "hotel",
    "jeweller", "library", "museum", "nursery", "orchard", "pharmacy", "pottery", "theatre", "vineyard", "zoo",
)  # fmt: skip
"""Shops that pages are about."""
COLORS: Mapping[str, tuple[str, str]] = {
    "red": ("b91c1c", "fecaca"),
    "green": ("15803d", "bbf7d0"),
    "blue": ("1d4ed8", "bfdbfe"),
    "yellow": ("a16207", "fef08a"),
    "purple": ("7e22ce", "e9d5ff"),
    "pink": ("be185d", "fbcfe8"),
}
"""Color -> its dark shade for bars, and its light shade for panels: Tailwind's 700 and 200, in RGB."""
CARD = "d1d5db"
"""Color of cards: Tailwind's gray-300."""
NUM_CARDS = (2, 3, 4)
"""Possible numbers of cards on a page."""

BAR_HEIGHT, PANEL_HEIGHT, CARD_TOP, CARD_HEIGHT = 64, 240, 336, 240
"""Sizes in pixels: bar and panel fill the width, one below the other; cards begin at `CARD_TOP`."""
_JUSTIFIED: Mapping[Place, str] = {"left": "start", "middle": "center", "right": "end"}
_REQUEST = re.compile(r"I want a page for my ([a-z]{3,12}): a bar")
_PAGE = re.compile(
    r"<html>.*?<nav class=\"bg-([a-z]+)-700 .*?<section class=\"bg-([a-z]+)-200 .*? justify-([a-z]+) .*?"
    r"<main class=\"grid grid-cols-(\d) .*?</html>",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Design:
    """The details that decide a page.

    Attributes:
        bar: Color of the bar at the top.
        panel: Color of the panel below it.
        heading: Place of the heading in the panel.
        num_cards: Number of cards below the panel.
    """

    bar: str
    panel: str
    heading: Place
    num_cards: int


def request(shop: str) -> str:
    """Return the human's first request, for a page about a shop."""
    return f"I want a page for my {shop}: a bar at the top, a panel with a heading, and cards below."


def read_request(text: str) -> str | None:
    """Return the shop in the first request in a text; None if there is no request of this world."""
    match = _REQUEST.search(text)
    return match[1] if match else None


def page(shop: str, design: Design) -> str:
    """Return the HTML of a page."""
    card = f'<div class="bg-gray-300 h-60 p-4 text-lg">Our {shop}</div>'
    return (
        '<html><head><script src="https://cdn.tailwindcss.com"></script></head><body class="bg-white">'
        f'<nav class="bg-{design.bar}-700 h-16 p-4 text-xl text-white">The {shop}</nav>'
        f'<section class="bg-{design.panel}-200 h-60 px-8 flex items-center justify-{_JUSTIFIED[design.heading]} '
        f'text-4xl text-black"><h1>Welcome to our {shop}</h1></section>'
        f'<main class="grid grid-cols-{design.num_cards} gap-8 p-8">{card * design.num_cards}</main></body></html>'
    )


def read_page(text: str) -> Design | None:
    """Return the design of the last page in a text; None if there is no page of this world."""
    found = _PAGE.findall(text)
    if not found:
        return None
    bar, panel, justified, number = found[-1]
    heading = next((place for place, name in _JUSTIFIED.items() if name == justified), None)
    if not {bar, panel} <= COLORS.keys() or heading is None:
        return None
    return Design(bar, panel, heading, int(number))
