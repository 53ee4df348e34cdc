"""Pages of the sample world: what decides them, and what a picture of them shows."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from support.page_pictures import picture_of
from support.pictures import png

from treadle.core.errors import ConfigError
from treadle.demo.pages.design import COLORS, NUM_CARDS, PLACES, SHOPS, Design, page, read_page, read_request
from treadle.demo.pages.sight import Unseen, seen_design
from treadle.demo.pages.tasks import drawn_design, write_pages
from treadle.environments.colbench.frontend.markup import target_page
from treadle.environments.colbench.frontend.stand_ins import with_styles

DESIGNS = [
    Design(bar, panel, heading, num_cards)
    for (bar, panel), heading, num_cards in itertools.product(
        zip(COLORS, reversed(COLORS), strict=True), PLACES, NUM_CARDS
    )
]


@pytest.mark.parametrize("design", DESIGNS)
def test_design_is_read_from_the_page_and_from_its_picture(design: Design) -> None:
    assert read_page(f"OUTPUT: {page('zoo', design)}") == design
    assert seen_design(picture_of(design)) == design


def test_pages_of_another_kind_have_no_design_and_broken_pictures_are_refused() -> None:
    assert read_page("<html><nav class='bg-red-700'></nav></html>") is None
    assert read_page(page("zoo", DESIGNS[0]).replace("bg-red-700", "bg-teal-700")) is None
    assert seen_design(png(1280, 800)) is None and seen_design(png(2, 2)) is None
    for data in (b"", b"no picture", picture_of(DESIGNS[0])[:100]):
        with pytest.raises(Unseen):
            seen_design(data)


def test_colors_are_those_of_the_style_sheet() -> None:
    for design in DESIGNS[:: len(PLACES) * len(NUM_CARDS)]:
        styled = with_styles(page("zoo", design))
        assert f"#{COLORS[design.bar][0]}" in styled and f"#{COLORS[design.panel][1]}" in styled


def test_requests_are_about_the_page_and_name_no_detail(tmp_path: Path) -> None:
    path = write_pages(tmp_path, heldout=len(SHOPS))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [read_request(row["question"]) for row in rows] == list(SHOPS)
    designs = [read_page(target_page(row)) for row in rows]
    assert designs == [drawn_design(0, place) for place in range(len(SHOPS))]
    assert len(set(designs)) > len(SHOPS) // 2, "they vary"
    assert not any(color in row["question"] for row in rows for color in COLORS)
    assert write_pages(tmp_path / "again", heldout=len(SHOPS)).read_bytes() == path.read_bytes()
    assert write_pages(tmp_path / "other", heldout=len(SHOPS), seed=1).read_bytes() != path.read_bytes()
    with pytest.raises(ConfigError, match="has 1 to 20 tasks, not 21"):
        write_pages(tmp_path, heldout=21)
