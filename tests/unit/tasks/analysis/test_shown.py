"""What notebooks show of runs, tables and trajectories: markup of ours alone, and bounded."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.core.runs.address import Address
from treadle.tasks.analysis.row_table import RowTable
from treadle.tasks.analysis.shown import RunTrajectory, run_html, table_html

HOSTILE = (
    "<script>alert(1)</script>",
    "</pre></details><img src=x onerror=alert(1)>",
    "\x1b[2J\u202e$\\href{javascript:alert(1)}{x}$",
    "\ud800 & \" onmouseover='alert(1)'",
)
OURS = {"div", "p", "b", "pre", "table", "thead", "tbody", "tr", "th", "td", "details", "summary"}


class Markup(HTMLParser):
    """The elements and texts of a page; fails on markup that is not ours."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == [], "every element is closed"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert tag in OURS and {name for name, _ in attributes} <= {"style", "class"}
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def trajectory(*texts: str, kind: str = "think", prediction: str | None = "Ilme") -> RunTrajectory:
    """Return a trajectory with one segment per text."""
    row = {"rollout_key": "00ff", "model": "base", "status": "answered"}
    return RunTrajectory(
        address=Address.parse("1/rollouts@base"),
        rollout=row,
        question={"question": texts[0], "answers": [texts[-1]]},
        score={"correct": True, "prediction": prediction},
        segments=[{"kind": kind, "text": f"<{kind}>{text}</{kind}>", "start": 0, "end": 0} for text in texts],
        tool_calls=[],
    )


@given(st.text() | st.sampled_from(HOSTILE))
def test_no_text_becomes_markup(text: str) -> None:
    rows = pa.table({"text": [text.encode("utf-8", "replace").decode()], "list": [[1.5, None]]})
    pages = [table_html(rows), run_html(text, text, [(text, text, text)])]
    pages += [trajectory(text, text, kind=kind, prediction=text)._repr_html_() for kind in ("think", "result")]
    for page in pages:
        assert Markup(page).texts
        assert "\x1b" not in page and "\u202e" not in page
        assert page.startswith('<div class="treadle tex2jax_ignore mathjax_ignore">'), "never typeset as a formula"


def test_long_tables_show_both_ends() -> None:
    rows = RowTable(pa.table({f"column{number}": range(10_000) for number in range(30)}))
    texts = Markup(rows._repr_html_()).texts
    assert {"0", "4", "…", "9995", "9999"} <= set(texts) and "5" not in texts
    assert "column19" in texts and "column20" not in texts
    assert "10,000 rows, 30 columns (10 not shown: column20" in texts[-1]
    assert len(rows.to_arrow().select(["column0"])) == len(rows)


@pytest.mark.parametrize("num_rows", [0, 1, 10, 11])
def test_every_row_of_a_short_table_is_shown_once(num_rows: int) -> None:
    texts = Markup(table_html(pa.table({"name": [f"row {number}" for number in range(num_rows)]}))).texts
    shown = [text for text in texts if text.startswith("row ")]
    assert shown == [f"row {number}" for number in range(num_rows) if num_rows <= 10 or not 5 <= number < num_rows - 5]


def test_trajectories_are_shown_by_their_pieces() -> None:
    found = trajectory("Vorna is a book.", "Ilme", kind="result")
    page = found._repr_html_()
    texts = Markup(page).texts
    assert page.count("<details>") == 2, "results are folded"
    assert {"Vorna is a book.", "Ilme", "right", "1/rollouts@base", "answered"} <= set(texts)
    assert repr(found) == "<trajectory 00ff of 1/rollouts@base: answered, right>"


def test_a_huge_trajectory_is_bounded() -> None:
    pages = [
        trajectory("word " * 200_000)._repr_html_(),
        trajectory(*["<b>" * 1_000] * 5_000)._repr_html_(),
        run_html("r", "", [("1/x", "t", "")] * 10_000),
    ]
    for page in pages:
        Markup(page)
        assert len(page) < 600_000
    assert "4,800 more pieces" in pages[1] and "9,900 more" in pages[2]


def test_what_a_trajectory_lacks_is_said() -> None:
    found: Any = trajectory("x")
    bare = RunTrajectory(found.address, found.rollout, found.question, None, [], [])
    assert {"no verdict", "none"} <= set(Markup(bare._repr_html_()).texts)
