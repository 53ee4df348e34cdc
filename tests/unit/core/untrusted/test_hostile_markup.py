"""Names, errors and paths made to be taken for markup: in cards of the Prefect UI, in the report, in the terminal."""

from __future__ import annotations

import io
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from support.tables.score_tables import new_run, put_rows, score

from treadle.cli.terminal import TerminalProgress
from treadle.core.errors import RunError, TreadleError
from treadle.core.figures import escape, plain
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance
from treadle.eval.config import ReportSettings
from treadle.eval.tables import SCORES
from treadle.report.entry import REPORT_STAGE
from treadle.report.terminal import summary_table
from treadle.tasks.prefect.stage_card import stage_card

PARTS = [
    "\x1b[31mred\x1b[0m", "[red]x[/red]", "[/]", "[link=http://evil.test]x[/link]", "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>", "<!-- ", "|", "||", r"\|", "\\", "`", "``", "```", "~~~", "~~s~~", "*i*", "**b**",
    "_i_", "__b__", "snake_case", "[x](javascript:1)", "![x](http://evil.test)", "[x]: http://evil.test", "[^1]",
    "<http://evil.test>", "&lt;", "&#60;b&#62;", "$x$", "# h", "- i", "1. i", "> q", "---", "===", ":---:", "\n\n# h",
    "\r\n", "\t", "    code", "\u202e", "\u2066", "\u2028", "\u200b", "\0", "\x9b2J", "\x7f", "\ufeff",
]  # fmt: skip
RENDERER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
OURS = {"paragraph_open", "heading_open", "table_open", "thead_open", "tbody_open", "tr_open", "th_open", "td_open"}
OURS |= {"bullet_list_open", "list_item_open", "inline", "text", "softbreak"}
"""What we write ourselves besides what a test names; nothing else may come of a text."""
UNSHOWABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u2028\u202e\u2066\ufeff]")


def tokens_of(markdown: str) -> Iterator[Token]:
    for token in RENDERER.parse(markdown):
        yield token
        yield from token.children or ()


def check(markdown: str, also: set[str]) -> list[str]:
    """Nothing in it is markup but our own; returns its paragraphs and cells as a reader sees them."""
    assert not UNSHOWABLE.search(markdown), UNSHOWABLE.search(markdown)
    kinds = {token.type for token in tokens_of(markdown) if not token.type.endswith("_close")}
    assert kinds <= OURS | also, kinds - OURS - also
    blocks = [token for token in RENDERER.parse(markdown) if token.type == "inline"]
    return ["".join(child.content for child in block.children or ()) for block in blocks]


def texts() -> list[str]:
    """Every part alone, and all of them in some orders, with and without blanks."""
    chance = random.Random(5)
    orders = [chance.sample(PARTS, len(PARTS)) for _ in range(6)]
    return [*PARTS, *(blank.join(order) for order in orders for blank in ("", " "))]


def shown(text: str) -> str:
    """Return a text as a reader of markdown sees it."""
    return plain(text).strip()


def test_escaped_text_stays_text() -> None:
    for text in texts():
        (seen,) = check(f"# {escape('x' + text)}", set())
        assert seen == shown("x" + text), text
        _, cell, after = check(f"| head | after |\n|---|---|\n| {escape(text)} | after |", set())[1:]
        assert (cell, after) == (shown(text), "after"), text


@pytest.fixture
def reported(tmp_path: Path) -> tuple[Run, Any]:
    """Return a report over models and data sets with such names, in a folder with such a name."""
    names = [name.encode(errors="replace").decode() for name in texts()]
    rows = [
        score(f"k{place}", f"q{place}", True, model=name, dataset=name, calls_requested=1)
        for place, name in enumerate(names)
    ]
    run = new_run(tmp_path / "<b>x</b>|`[red]`*x*")
    scores = put_rows(run, "1/scores@m", SCORES, rows)
    settings = ReportSettings(title=" ".join(PARTS), bootstrap_samples=100)
    place = Address.parse("1/report")
    record = execute(Instance(address=place, stage=REPORT_STAGE, settings=settings, inputs={"scores": (scores,)}), run)
    return run, record


def test_report_shows_titles_and_names_verbatim(reported: tuple[Run, Any]) -> None:
    run, record = reported
    markdown = run.rows(record.outputs["summary"]).read_file("report.md").decode()
    seen = check(markdown, {"strong_open", "code_inline"})
    assert seen[0] == shown(" ".join(PARTS))
    assert [name for name in texts() if seen.count(shown(name)) < 4] == []


def test_card_shows_metrics_and_paths_verbatim(reported: tuple[Run, Any]) -> None:
    run, record = reported
    metrics = {f"m{place} {text}": text for place, text in enumerate(texts())}
    card = stage_card(record.model_copy(update={"metrics": {**metrics, "deep": metrics}}), run)
    seen = check(card.markdown, {"strong_open", "code_inline"})
    for name, text in metrics.items():
        assert seen.count(shown(name)) == 1 and shown(text) in seen
        assert shown(f"deep.{name}") in seen
    assert any("<b>x</b>|`[red]`*x*/" in line for line in seen)
    assert len(card.rows) == len(texts())
    assert not UNSHOWABLE.search(json.dumps(card.rows, ensure_ascii=False))


def test_terminal_shows_names_verbatim(reported: tuple[Run, Any]) -> None:
    from rich.console import Console

    run, record = reported
    for width in (60, 400):
        console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
        rows = list(run.rows(record.outputs["summary"]).rows())
        console.print(summary_table(rows, title=" ".join(PARTS), width=width))
        seen = console.file.getvalue()  # type: ignore[attr-defined]
        assert not UNSHOWABLE.search(seen)
        if width == 400:
            assert all(plain(part) in seen for part in PARTS if part.strip())


def test_progress_shows_facts_verbatim(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stderr = Terminal()
    monkeypatch.setattr("sys.stderr", stderr)
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("TERM", "xterm")
    with TerminalProgress("1/rollouts@m") as progress:
        progress.start(2, 1, "rollouts")
        progress.advance(1, **{"a [red]fact[/red]": "[bold]b[/bold] \x1b]0;title\x07 \x9b2J \u202e"})
    seen = stderr.getvalue()
    assert "a [red]fact[/red] [bold]b[/bold]" in seen
    assert not re.search("\x1b]|[\x07\x9b\u202e]", seen)


def test_names_used_in_addresses_and_paths_cannot_contain_markup(tmp_path: Path) -> None:
    for text in PARTS:
        if re.fullmatch(r"[A-Za-z0-9._-]+", text):
            continue
        with pytest.raises(TreadleError):
            Address.parse(f"1/scores@{text}")
        with pytest.raises(RunError):
            Run.create(tmp_path, f"r{text}", {}, {})
