"""Read the design of a page of the sample world from its picture alone, by the colors at fixed places."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from treadle.demo.pages.design import (
    BAR_HEIGHT,
    CARD,
    CARD_HEIGHT,
    CARD_TOP,
    COLORS,
    NUM_CARDS,
    PANEL_HEIGHT,
    PLACES,
    Design,
    Place,
)

_MAX_PIXELS = 16_000_000
_NEAR = 12
"""Maximum difference between a pixel and a color, in each RGB channel, at which the pixel counts as having it."""
_DARK = 100
"""Brightness below which a pixel belongs to a heading."""

Pixels = NDArray[np.uint8]


class Unseen(ValueError):
    """Picture that cannot be read."""


def seen_design(png: bytes) -> Design | None:
    """Return the design of the page in a PNG picture; None for a page of another kind. Raises Unseen."""
    pixels = _pixels(png)
    height, width, _ = pixels.shape
    if height < CARD_TOP + CARD_HEIGHT or width < len(PLACES):
        return None
    bar = _named(pixels[BAR_HEIGHT // 2, width - 1], 0)
    panel = _named(pixels[BAR_HEIGHT + 4, width - 1], 1)
    heading = _place(pixels[BAR_HEIGHT : BAR_HEIGHT + PANEL_HEIGHT])
    num_cards = _runs(pixels[CARD_TOP + CARD_HEIGHT // 2], CARD)
    if bar is None or panel is None or heading is None or num_cards not in NUM_CARDS:
        return None
    return Design(bar, panel, heading, num_cards)


def _pixels(png: bytes) -> Pixels:
    """Return a picture as an array of shape (height, width, 3)."""
    try:
        with Image.open(io.BytesIO(png), formats=["PNG"]) as picture:
            if picture.width * picture.height > _MAX_PIXELS:
                raise Unseen(f"the picture has {picture.width} x {picture.height} pixels")
            return np.asarray(picture.convert("RGB"))
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise Unseen(f"the picture cannot be read: {error}") from None


def _is_near(pixels: Pixels, color: str) -> NDArray[np.bool_]:
    """Return for each pixel whether it has this color, up to a difference of `_NEAR`."""
    wanted = np.frombuffer(bytes.fromhex(color), np.uint8).astype(np.int16)
    near: NDArray[np.bool_] = (np.abs(pixels.astype(np.int16) - wanted) <= _NEAR).all(axis=-1)
    return near


def _named(pixel: Pixels, shade: int) -> str | None:
    return next((name for name, shades in COLORS.items() if _is_near(pixel, shades[shade])), None)


def _place(panel: Pixels) -> Place | None:
    """Return the place of the dark text in a panel: the third of the panel's width in which the text's middle is."""
    columns = np.flatnonzero((panel.max(axis=-1) < _DARK).any(axis=0))
    if not columns.size:
        return None
    middle = (int(columns[0]) + int(columns[-1])) / 2
    return PLACES[min(int(middle * len(PLACES) / panel.shape[1]), len(PLACES) - 1)]


def _runs(row: Pixels, color: str) -> int:
    """Return how many separate sequences of pixels in a row have this color."""
    near = np.concatenate([[False], _is_near(row, color)]).astype(np.int8)
    return int((np.diff(near) == 1).sum())
