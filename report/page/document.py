"""Define the parts of a page and render them as one HTML file.

The file loads nothing: no script, font or picture, which its content security policy also forbids. Names and model
texts are escaped data in the template, never markup. Equal pages give equal bytes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from treadle.core.figures import Figures, cell_text, plain
from treadle.core.untrusted.sanitize import one_line
from treadle.report.page.inline_svg import SERIES, inline_svg

if TYPE_CHECKING:
    import jinja2

_LONG_CELL = 44
"""A column wraps its text if one of its cells has more characters than this."""

MAX_TILES = 8
"""Maximum number of tiles; more do not work as a summary."""

GENERATOR = "treadle report"
"""Value of the HTML metadata field `generator` of the file."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture drawn by matplotlib, with a text description for screen readers."""

    title: str
    description: str
    svg: bytes
    note: str = ""
    """Sentence below the picture about data that it does not show."""


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph of text."""

    text: str


@dataclass(frozen=True, slots=True)
class Tile:
    """One number in large print."""

    name: str
    value: str
    note: str
    series: int | None = None
    """Number of the colour that marks the tile, as in the charts."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """A row of tiles. Only the first `MAX_TILES` are shown, with a note if there are more."""

    tiles: tuple[Tile, ...]


@dataclass(frozen=True, slots=True)
class Fold:
    """Parts that are collapsed until the reader opens them."""

    summary: str
    parts: Sequence[Part]


Part = Chart | Paragraph | Tiles | Figures | Fold


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page with its own entry in the table of contents."""

    name: str
    """Fragment of the section's URL: letters, digits and hyphens."""
    title: str
    reading: str
    """One sentence that explains how to read the section."""
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True)
class Page:
    """The whole page."""

    title: str
    facts: Sequence[tuple[str, str]]
    """Names and values below the title, such as the run and its models."""
    sections: Sequence[Section]
    notes: Sequence[str] = field(default=())
    """Sentences about missing parts and the reasons; shown at the top."""


def render_page(page: Page) -> bytes:
    """Render the page as an HTML file."""
    sections = [
        {
            "name": section.name,
            "title": plain(section.title),
            "reading": plain(section.reading),
            "parts": _parts(section.parts, section.name),
        }
        for section in page.sections
    ]
    text = _template().render(
        title=plain(one_line(page.title)),
        facts=[(plain(name), plain(one_line(value))) for name, value in page.facts],
        notes=[plain(one_line(note)) for note in page.notes],
        sections=sections,
        style=_style(),
        style_digest=base64.b64encode(hashlib.sha256(_style().encode()).digest()).decode(),
        generator=GENERATOR,
        num_series=len(SERIES),
    )
    return text.encode()


def _parts(parts: Sequence[Part], name: str) -> list[dict[str, Any]]:
    shown = []
    for number, part in enumerate(parts, 1):
        match part:
            case Figures() if part.rows:
                shown.append({"kind": "table", **_table(part)})
            case Chart():
                svg = inline_svg(part.svg, f"{name}-{number}", plain(part.title), plain(part.description))
                shown.append({"kind": "chart", "title": plain(part.title), "svg": svg, "note": plain(part.note)})
            case Paragraph():
                shown.append({"kind": "text", "text": plain(one_line(part.text))})
            case Tiles():
                shown.append({"kind": "tiles", **_tiles(part.tiles)})
            case Fold():
                inner = _parts(part.parts, f"{name}-{number}")
                for one in inner:
                    # "\0" never matches: a part without a title has nothing to hide.
                    if plain(part.summary).startswith(one.get("title") or "\0"):
                        one["title"] = ""  # the summary already shows it
                shown.append({"kind": "fold", "summary": plain(part.summary), "parts": inner})
    return shown


def _tiles(tiles: Sequence[Tile]) -> dict[str, Any]:
    shown = [
        {"series": tile.series, **{name: plain(one_line(getattr(tile, name))) for name in ("name", "value", "note")}}
        for tile in tiles[:MAX_TILES]
    ]
    note = "" if len(tiles) <= MAX_TILES else f"The first {MAX_TILES} of {len(tiles)}; the table has all."
    return {"tiles": shown, "note": note}


def _table(figures: Figures) -> dict[str, Any]:
    columns = range(len(figures.header))
    return {
        "title": plain(figures.title),
        "header": [plain(one_line(name)) for name in figures.header],
        "rows": [[cell_text(cell) for cell in row] for row in figures.rows],
        "is_long": [any(len(cell_text(row[index])) > _LONG_CELL for row in figures.rows) for index in columns],
        "is_text": list(map(figures.is_text, columns)),
        "note": plain(figures.note),
    }


@cache
def _template() -> jinja2.Template:
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_file("page.html.jinja"))


@cache
def _style() -> str:
    return _file("colours.css", "treadle.core") + _file("page.css")


def _file(name: str, package: str = __package__ or "treadle.report.page") -> str:
    return files(package).joinpath(name).read_text(encoding="utf-8")
