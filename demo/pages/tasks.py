"""Write pages of the sample world as questions of a run, in the format of `colbench/frontend`."""

from __future__ import annotations

from pathlib import Path

from treadle.core.errors import ConfigError
from treadle.demo.names import mix
from treadle.demo.pages.design import COLORS, NUM_CARDS, PLACES, SHOPS, Design, page, request
from treadle.demo.world_files import write_questions

HELDOUT = "pages-heldout"
"""Name of the data set that the tasks belong to, all of which are held out."""
_SALT = 401


def drawn_design(seed: int, place: int) -> Design:
    """Return the design of the task with this number, from 0."""
    bits, colors = mix(seed, place, _SALT), tuple(COLORS)
    return Design(
        bar=colors[bits % len(colors)],
        panel=colors[(bits >> 16) % len(colors)],
        heading=PLACES[(bits >> 32) % len(PLACES)],
        num_cards=NUM_CARDS[(bits >> 48) % len(NUM_CARDS)],
    )


def write_pages(folder: Path, *, heldout: int, seed: int = 0) -> Path:
    """Write `questions.jsonl` with the fields `question`, `page`, `split` and `dataset`; return its path.

    Equal parameters give equal bytes. Raises ConfigError if `heldout` is below 1 or above the number of shops, and
    StorageError if the folder cannot be written.
    """
    if not 1 <= heldout <= len(SHOPS):
        raise ConfigError(f"a world of pages has 1 to {len(SHOPS)} tasks, not {heldout}")
    rows = [
        {
            "question": request(shop),
            "page": page(shop, drawn_design(seed, place)),
            "split": "heldout",
            "dataset": HELDOUT,
        }
        for place, shop in enumerate(SHOPS[:heldout])
    ]
    return write_questions(folder, rows, "pages")
