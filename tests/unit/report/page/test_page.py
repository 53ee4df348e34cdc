"""Pages of sections, tables and charts: one file that asks for nothing, in which every text stays a text."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from treadle.core.errors import DataError
from treadle.core.figures import Figures, plain
from treadle.core.plots import draw_svg
from treadle.report.page.charts import (
    IntervalRow,
    Spread,
    Yield,
    calls_chart,
    endings_chart,
    interval_chart,
    loss_chart,
    radar_chart,
    spread_chart,
    yields_chart,
)
from treadle.report.page.document import Chart, Fold, Page, Paragraph, Part, Section, Tile, Tiles, render_page
from treadle.report.page.inline_svg import THEME, inline_svg
from treadle.report.radar import Axis

ROOT = Path(__file__).resolve().parents[4]
HOSTILE = [
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</style><script>alert(1)</script>", "</svg><b>",
    "]]><script>", "<!-- x", "&lt;b&gt;", "' onload='alert(1)", "{{ 7 * 7 }}", "{% for x in y %}", "$\\frac{1}{2}$",
    "javascript:alert(1)", "url(http://evil.test)", "\u202egnp.exe", "\0\x1b[31m", "名前", "a" * 400, "#ffffff",
]  # fmt: skip
VOID = {"meta", "link", "br", "img", "input", "hr"}


class Reader(HTMLParser):
    """Elements, attributes and texts of a page; fails where they do not nest."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str | None]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.texts.append(data)


def read(page: bytes) -> Reader:
    reader = Reader()
    reader.feed(page.decode())
    reader.close()
    assert reader.open == []
    return reader


def parts_named(names: list[str]) -> list[Part]:
    """Return one part of each kind, with the names in every possible place."""
    numbered = list(enumerate(names))
    return [
        *map(Paragraph, names),
        Tiles(tuple(Tile(name, name, name, number) for number, name in numbered)),
        *(Figures(name, (name, "x"), ((name, name), ("b", 1_234)), name) for name in names),
        interval_chart(names[0], [IntervalRow(name, name, number, 0.5, 0.4, 0.6) for number, name in numbered]),
        calls_chart(names[0], {(name, number): [0.5, 0.5] for number, name in numbered}, is_last_open_ended=True),
        radar_chart(names[0], [Axis(name[:40], 0.0, 1.0, dict.fromkeys(names, 0.5)) for name in (*names, *"ab")]),
        spread_chart(names[0], names[0], [Spread.of(name, number, [1.0, 2.0, 3.0]) for number, name in numbered]),
        endings_chart(names[0], {name: dict.fromkeys(names, 3) for name in names}, names),
        yields_chart(names[0], [Yield(name, 3, 2, 1) for name in names]),
        loss_chart(names[0], [1, 2, 3], [3.0, 2.0, 1.0]),
        *(Fold(name, [Paragraph(name), Figures(name, (name,), ((name,),))]) for name in names),
    ]


def page_of(*names: str) -> Page:
    sections = [Section(f"part-{number}", name, name, []) for number, name in enumerate(names)]
    sections.append(Section("all", names[0], names[0], parts_named(list(names))))
    return Page(names[0], [(name, name) for name in names], sections, names)


@pytest.fixture(scope="module")
def page() -> bytes:
    return render_page(page_of("name"))


def test_equal_pages_are_equal_bytes(page: bytes) -> None:
    assert render_page(page_of("name")) == page


def test_names_stay_text_everywhere(page: bytes) -> None:
    hostile, harmless = read(render_page(page_of(*HOSTILE))), read(page)
    assert set(hostile.tags) == set(harmless.tags)
    more = {key for _, key, _ in hostile.attributes} - {key for _, key, _ in harmless.attributes}
    assert more <= {"stroke-linejoin"}  # marks of further models
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", "".join(hostile.texts))
    shown = Counter(hostile.texts)
    for name in HOSTILE:
        assert shown[plain(name)] > 5


def test_page_loads_nothing_and_its_policy_allows_only_its_style(page: bytes) -> None:
    reader = read(page)
    assert not reader.tags.keys() & {"script", "link", "img", "iframe", "object", "embed", "base", "form", "image"}
    assert not {key for _, key, _ in reader.attributes} & {"style", "src", "srcset", "onload", "xlink:href"}
    assert all(value and value.startswith("#") for _, key, value in reader.attributes if key == "href")
    assert "url(" not in re.sub(r'"url\(#[\w.-]+\)"', "", page.decode())
    style = re.search(r"<style>(.*)</style>", page.decode(), re.DOTALL)
    policy = next(value for tag, key, value in reader.attributes if key == "content" and "default-src" in (value or ""))
    assert style is not None and policy is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert policy.split("; ")[:2] == ["default-src 'none'", f"style-src 'sha256-{digest}'"]


def test_ids_are_unique_and_references_resolve() -> None:
    parts = parts_named(["a model"]) * 2
    reader = read(render_page(Page("x", [], [Section("one", "1", "", parts), Section("two", "2", "", parts)])))
    ids = Counter(value for _, key, value in reader.attributes if key == "id")
    assert max(ids.values()) == 1
    for _, key, value in reader.attributes:
        if key in ("href", "clip-path", "aria-labelledby"):
            assert {name.removeprefix("#") for name in re.sub(r"url\((.*)\)", r"\1", value or "").split()} <= set(ids)


def test_charts_have_descriptions_and_page_colours() -> None:
    chart = interval_chart("Right answers", [IntervalRow("", "base", 0, 0.5, 0.42, 0.61)])
    assert chart.description == "base: 50.0 % (42.0 to 61.0)"
    svg = inline_svg(chart.svg, "c", chart.title, chart.description)
    assert "<title" in svg and ">base: 50.0 % (42.0 to 61.0)</desc>" in svg
    assert set(re.findall(r'"(#[0-9a-f]{6})"', svg)) == set()
    assert "var(--series-0)" in svg


def test_empty_tables_are_omitted() -> None:
    reader = read(render_page(Page("x", [], [Section("a", "A", "", [Figures("Nothing", ("a",), ())])])))
    assert "table" not in reader.tags


def test_figures_lose_active_content() -> None:
    picture = b"""<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 9 9"
     onload="alert(1)"><script>alert(1)</script><style>*{fill:red}</style><foreignObject><p>x</p></foreignObject>
     <a xlink:href="javascript:alert(1)"><text>link</text></a><image xlink:href="http://evil.test/x.png"/>
     <use xlink:href="http://evil.test/#x"/><path d="M 0 0" onclick="alert(1)" style="fill: url(http://evil.test)"/>
     <rect x="1" y="expression(alert(1))" style="fill: #2a5d9f; behavior: url(x)"/></svg>"""
    svg = inline_svg(picture, "p", "t", "d")
    assert svg.endswith('<use/><path d="M 0 0"/><rect x="1" fill="var(--accent)"/></svg>')


def test_name_invalid_in_xml_does_not_break_a_figure() -> None:
    picture = draw_svg(lambda figure: figure.text(0.5, 0.5, "bell \a and escape \x1b[31m"), width=2, height=1)
    assert "bell ? and escape ?[31m</text>" in inline_svg(picture, "p", "t", "d")


def test_invalid_figure_is_refused() -> None:
    for given in (b"", b"<svg", b"<html></html>", b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="a"/>'):
        with pytest.raises(DataError, match="no SVG"):
            inline_svg(given, "p", "t", "d")


def test_positions_are_rounded_to_keep_pages_small() -> None:
    def draw(figure: Any) -> None:
        figure.subplots().plot([0, 1, 3], [0.123456, 1, 2])

    raw = draw_svg(draw, width=4, height=3)
    svg = inline_svg(raw, "p", "t", "d")
    assert len(svg) < len(raw) / 2
    assert not re.search(r"\d\.\d{3}", svg.split("</desc>")[1])


def test_chart_is_part_of_its_section() -> None:
    chart = Chart("t", "d", draw_svg(lambda figure: None, width=1, height=1))
    assert 'id="here-1-title"' in render_page(Page("x", [], [Section("here", "A", "", [chart])])).decode()


def test_page_uses_only_palette_colours() -> None:
    own = (ROOT / "report" / "page" / "page.css").read_text()
    there = set(re.findall(r"--([\w-]+):", (ROOT / "core" / "colours.css").read_text()))
    assert {*re.findall(r"var\(--([\w-]+)\)", own), *re.findall(r"var\(--([\w-]+)\)", str(THEME))} <= there
    assert re.findall(r"#[0-9a-f]{3,6}\b", own) == ["#ffffff"], "paper on paper"
