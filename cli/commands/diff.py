"""Define `treadle diff`, which compares two runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treadle.cli.options import json_option, root_option, say
from treadle.core.untrusted.sanitize import one_line, sanitized_json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from treadle.tasks.inspection.run_diff import Change, FigureChange, InstanceDiff, RunDiff

_SHOWN_CHARS = 60
_SHOWN_SETTINGS = 3
_SHOWN_FIGURES = 30
_AVERAGES = ("every", "all", "math", "knowledge")


@click.command(short_help="How two runs differ.", epilog="Example:  treadle diff first second")
@click.argument("first", metavar="RUN")
@click.argument("second", metavar="RUN")
@root_option
@json_option
def diff(first: str, second: str, root: str | Path, as_json: bool) -> None:
    """Compare two runs: configuration keys, software, results by digest, row counts, and report figures.

    Results with equal digests are identical. In a terminal, metrics of a stage and keys of stages that neither run has
    are left out, and only the largest changes of figures are shown, averages first; --json has everything.
    """
    from treadle.core.runs.run import Run
    from treadle.tasks.inspection.run_diff import run_diff

    found = run_diff(Run.open(root, first), Run.open(root, second))
    if as_json:
        click.echo(sanitized_json(_as_json(found)))
        return
    _show(found)


def _as_json(found: RunDiff) -> dict[str, Any]:
    data = asdict(found)
    for figure, change in zip(data["figures"], found.figures, strict=True):
        figure["difference"] = change.difference
    return data


def _show(found: RunDiff) -> None:
    from treadle.cli.views.tables import console

    out = console()
    if found.config:
        out.print(_changes(f"configuration: {len(found.config):,} keys differ", found, found.config))
    if found.unused_config:
        tables = ", ".join(dict.fromkeys(change.name.partition(".")[0] for change in found.unused_config))
        click.echo(f"and {len(found.unused_config):,} keys of stages that neither run has ({one_line(tables)})")
    if found.software:
        out.print(_changes(f"software: {len(found.software):,} keys differ", found, found.software))
    different = [item for item in found.instances if item.verdict != "same"]
    if different:
        out.print(_instances(found, different))
    if found.figures:
        out.print(_figures(found))
    for note in found.notes:
        say(f"note: {one_line(note)}")
    num_same = len(found.instances) - len(different)
    click.echo(f"{num_same:,} of {len(found.instances):,} results are the same, byte for byte")


def _table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> RenderableType:
    from treadle.core.figures import Figures
    from treadle.report.terminal_table import terminal_table

    cells = tuple(tuple(map(one_line, row)) for row in rows)
    return terminal_table(Figures(one_line(title), tuple(header), cells, note, num_names=len(header)))


def _changes(title: str, found: RunDiff, changes: Sequence[Change]) -> RenderableType:
    rows = ((change.name, _text(change.first), _text(change.second)) for change in changes)
    return _table(title, ("key", found.first, found.second), rows)


def _instances(found: RunDiff, different: Sequence[InstanceDiff]) -> RenderableType:
    rows = ((item.address, _rows(item), _why(found, item)) for item in different)
    return _table("results that differ", ("instance", "rows", "because"), rows)


def _rows(item: InstanceDiff) -> str:
    return ", ".join(
        f"{one.kind} {_count(one.first_rows)} -> {_count(one.second_rows)}" for one in item.tables if not one.is_same
    )


def _count(rows: int | None) -> str:
    return "none" if rows is None else f"{rows:,}"


def _why(found: RunDiff, item: InstanceDiff) -> str:
    named = zip((found.first, found.second), item.reused_from, strict=True)
    same = [f"in {run} it is the same as {address}" for run, address in named if address]
    return "; ".join([_cause(found, item), *same])


def _cause(found: RunDiff, item: InstanceDiff) -> str:
    if item.verdict == "only first":
        return f"only in {found.first}"
    if item.verdict == "only second":
        return f"only in {found.second}"
    names = [change.name for change in item.settings]
    more = f" and {len(names) - _SHOWN_SETTINGS} more" if len(names) > _SHOWN_SETTINGS else ""
    reasons = [f"different {', '.join(names[:_SHOWN_SETTINGS])}{more}"] if names else []
    reasons += [f"different input {address}" for address in item.inputs]
    return "; ".join(reasons) or "same settings and inputs: a model or a service answered differently"


def _figures(found: RunDiff) -> RenderableType:
    header = ("report", "model", "data set", "figure", found.first, found.second, "change")
    shown = sorted(found.figures, key=_weight)
    rows = []
    for one in shown[:_SHOWN_FIGURES]:
        change = "" if one.difference is None else f"{one.difference:+.4g}"
        rows.append((one.address, one.model, one.dataset, one.figure, _number(one.first), _number(one.second), change))
    more = len(shown) - _SHOWN_FIGURES
    return _table("figures that differ", header, rows, f"and {more:,} more; --json has all" if more > 0 else "")


def _weight(figure: FigureChange) -> tuple[bool, bool, float, str]:
    from treadle.eval.metrics import MAIN_FIGURES

    change = figure.difference
    largest = -abs(change) if change is not None else 0.0
    return figure.figure not in MAIN_FIGURES, figure.dataset not in _AVERAGES, largest, figure.figure


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _text(value: Any) -> str:
    """Return a value as one sanitized, shortened line of JSON; empty for None."""
    text = "" if value is None else sanitized_json(value)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 3] + "..."
