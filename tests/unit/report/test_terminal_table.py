"""Tables for a terminal and as markdown show hostile cells as text."""

import io

from rich.console import Console

from treadle.core.figures import Figures, render_table
from treadle.report.terminal_table import terminal_table

TABLE = Figures("", ("name", "value [95 %]"), (("[red]x[/red]\x1b[2J", "0.5 [0.4, 0.6]"), ("y", "[a](b)")))


def test_terminal_shows_markup_and_control_characters_as_text() -> None:
    console = Console(file=io.StringIO(), width=100)
    console.print(terminal_table(TABLE))
    seen = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[red]x[/red]\N{REPLACEMENT CHARACTER}[2J" in seen
    assert "\x1b" not in seen


def test_markdown_leaves_intervals_readable_and_escapes_everything_else() -> None:
    lines = render_table(TABLE).splitlines()
    assert "value [95 %]" in lines[0]
    assert "0.5 [0.4, 0.6]" in lines[2] and "\\[red\\]x" in lines[2]
    assert "\\[a\\](b)" in lines[3]
