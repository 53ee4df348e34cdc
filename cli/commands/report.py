"""Define `treadle report`, which builds the HTML report of runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from treadle.cli.options import root_option, run_or_last
from treadle.core.untrusted.sanitize import sanitize

if TYPE_CHECKING:
    from treadle.core.runs.run import Run


@click.command(
    short_help="Build the HTML report of one or more runs.",
    epilog="Example:  treadle report --run first --run second --out report.html --open",
)
@click.option(
    "-r",
    "--run",
    "run_ids",
    multiple=True,
    help="Name of a run, or its folder ROOT/runs/NAME; several are compared. [default: the last one]",
)
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to write; an earlier page is replaced.",
)
@click.option("--open", "open_it", is_flag=True, help="Show it in the browser.")
@root_option
def report(run_ids: tuple[str, ...], out: Path, open_it: bool, root: str | Path) -> None:
    """Build the HTML report of runs: figures with intervals, comparisons, behaviour, data, training, cost.

    The file is self-contained: it can be mailed, put on any server or printed. Sections without data are left out.
    Several runs are shown side by side, and their models are compared on the questions that both were asked. The same
    runs give the same file.
    """
    from treadle.tasks.page.build import report_page
    from treadle.tasks.page.file import write_page

    named = dict.fromkeys(run_ids or (run_or_last(root),))
    content = report_page([_opened(root, given) for given in named])
    write_page(out, content)
    click.echo(sanitize(f"{out} ({len(content) / 1024:,.0f} KiB)"))
    if open_it:
        import webbrowser

        webbrowser.open(out.absolute().as_uri())


def _opened(root: str | Path, given: str) -> Run:
    """Open a run by its name under the root, or by its own folder."""
    from treadle.core.runs.run import Run

    place, _, name = given.rstrip("/").rpartition("/")
    own_root, _, folder = place.rpartition("/")
    if folder == "runs":
        return Run.open(own_root if place != "runs" else ".", name)
    return Run.open(root, given)
