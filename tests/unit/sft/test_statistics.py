"""Which rows are trained on, their statistics, and the figure."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from support.tables.sft_tables import TEXT_MODE, sft_row, table_of

from treadle.sft.config import SftOptions
from treadle.sft.trained_rows import COLUMNS, RowSelection, RowStatistics, draw_rows, metrics_of, render_statistics

HOSTILE = "<script>a|b</script>\x00\x1b[2J $x_1$ *"
ROWS = [
    sft_row("a", prompt=10, said=10),
    sft_row("b", prompt=10, said=10, results=20, operator="hint_tail", dataset=HOSTILE),
    sft_row("c", prompt=10, said=90, operator=HOSTILE),
    sft_row("d", **TEXT_MODE),
    sft_row("e", prompt=10, said=50),
    sft_row("f", prompt=10, said=50),
]


def counted(tmp_path: Path, rows: list[dict[str, Any]] = ROWS, **options: Any) -> tuple[RowStatistics, RowSelection]:
    selection, statistics = RowSelection(SftOptions(**options)), RowStatistics()
    for batch in table_of(tmp_path, rows).batches(COLUMNS):
        for start in range(0, batch.num_rows, 2):
            statistics.add(selection.take(batch.slice(start, 2)))
    return statistics, selection


def test_rows_overlong_without_ids_or_over_the_limit_are_skipped_and_counted(tmp_path: Path) -> None:
    statistics, selection = counted(tmp_path, cutoff_tokens=60, max_rows=3)
    assert statistics.numbers("num_tokens").tolist() == [20, 40, 60]
    assert selection.left_out() == {"text_mode": 1, "too_long": 1, "over_limit": 1}
    assert (selection.num_read, selection.num_rows, selection.longest_row) == (6, 3, 60)


def test_lengths_and_shares_are_exact_by_operator_and_dataset(tmp_path: Path) -> None:
    statistics, selection = counted(tmp_path)
    groups = {(group.kind, group.name): group for group in statistics.groups()}
    overall, hint = groups["all", "all"], groups["operator", "hint_tail"]
    assert (overall.num_rows, overall.tokens, overall.target_tokens, overall.longest) == (5, 280, 210, 100)
    assert overall.median_tokens == 60
    assert (hint.num_rows, hint.tokens, hint.target_share) == (1, 40, 0.25)
    assert groups["operator", "initial"].num_rows == 3
    assert groups["dataset", HOSTILE].num_rows == 1
    assert statistics.target_shares().tolist() == [0.5, 0.25, 0.9, 50 / 60, 50 / 60]
    assert metrics_of(statistics, selection) == {
        "rows": 5, "tokens": 280, "target_tokens": 210, "target_share": 0.75, "longest_row": 100, "unmasked_rows": 0,
        "left_out.text_mode": 1, "left_out.too_long": 0, "left_out.over_limit": 0,
    }  # fmt: skip


def test_rows_with_trainable_results_are_counted(tmp_path: Path) -> None:
    masked = sft_row("m", prompt=5, said=5, results=4)
    unmasked = sft_row("u", prompt=5, said=5, results=4, num_target_tokens=9)
    statistics, _ = counted(tmp_path, [masked, unmasked])
    assert statistics.num_unmasked() == 1


def test_empty_rows_are_not_an_error(tmp_path: Path) -> None:
    statistics, selection = counted(tmp_path, cutoff_tokens=1)
    assert metrics_of(statistics, selection)["rows"] == 0
    assert "0 of 6 rows are trained on" in render_statistics(statistics, selection)
    ElementTree.fromstring(draw_rows(statistics, 1))


def test_table_escapes_names_that_would_break_it(tmp_path: Path) -> None:
    text = render_statistics(*counted(tmp_path))
    assert "5 of 6 rows are trained on: 280 tokens, 210 of them targets (75.0%)" in text
    assert "\x1b" not in text and "\x00" not in text and "<script>" not in text
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table} == {8}


@pytest.mark.parametrize("cutoff_tokens", [None, 90])
def test_figure_is_valid_and_deterministic(tmp_path: Path, cutoff_tokens: int | None) -> None:
    pictures = [draw_rows(counted(tmp_path / place)[0], cutoff_tokens) for place in ("1", "2")]
    assert pictures[0] == pictures[1]
    root = ElementTree.fromstring(pictures[0])
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Length of rows", "Share of targets", "Tokens by operator", "hint_tail (1)", "median 60"} <= set(texts)
    assert ("cut-off 90" in texts) == (cutoff_tokens is not None)
    assert not list(root.iter("{http://www.w3.org/2000/svg}script"))
    assert not re.search(rb"\d{4}-\d\d-\d\d", pictures[0])


def test_figure_does_not_depend_on_the_user_style(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib

    usual = draw_rows(counted(tmp_path / "1")[0])
    monkeypatch.setitem(matplotlib.rcParams, "lines.linewidth", 7.0)
    monkeypatch.setitem(matplotlib.rcParams, "axes.grid", True)
    assert draw_rows(counted(tmp_path / "2")[0]) == usual
