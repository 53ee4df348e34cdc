"""Pictures of pages of the sample world, drawn without a browser."""

from __future__ import annotations

import io

from PIL import Image

from treadle.demo.pages.design import BAR_HEIGHT, CARD, CARD_HEIGHT, CARD_TOP, COLORS, PANEL_HEIGHT, PLACES, Design

WIDTH, HEIGHT, GAP, TEXT = 1280, 800, 32, (400, 40)


def picture_of(design: Design) -> bytes:
    """Return what a page of this design looks like, in PNG; its heading is a block."""
    picture = Image.new("RGB", (WIDTH, HEIGHT), "white")
    picture.paste(f"#{COLORS[design.bar][0]}", (0, 0, WIDTH, BAR_HEIGHT))
    panel_end = BAR_HEIGHT + PANEL_HEIGHT
    picture.paste(f"#{COLORS[design.panel][1]}", (0, BAR_HEIGHT, WIDTH, panel_end))
    free = WIDTH - 2 * GAP - TEXT[0]
    left = GAP + free * PLACES.index(design.heading) // 2
    picture.paste("black", (left, BAR_HEIGHT + 100, left + TEXT[0], BAR_HEIGHT + 100 + TEXT[1]))
    width = (WIDTH - GAP * (design.num_cards + 1)) // design.num_cards
    for place in range(design.num_cards):
        begin = GAP + place * (width + GAP)
        picture.paste(f"#{CARD}", (begin, CARD_TOP, begin + width, CARD_TOP + CARD_HEIGHT))
    data = io.BytesIO()
    picture.save(data, "PNG")
    return data.getvalue()
