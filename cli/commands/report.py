"""Define what shows results in a browser: `report` builds a page, `view` serves trajectories on this machine only."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from treadle.cli.options import root_option, run_option, run_or_last, say
from treadle.core.errors import ConfigError, Interrupted
from treadle.core.untrusted.sanitize import sanitize

if TYPE_CHECKING:
    from treadle.core.runs.run import Run


DEFAULT_PORT = 8484


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
@click.option(
    "--action-space",
    "with_action_space",
    is_flag=True,
    help="Also draw trajectories as points, near each other if they act alike (t-SNE; takes seconds).",
)
@click.option("--open", "open_it", is_flag=True, help="Show it in the browser.")
@root_option
def report(run_ids: tuple[str, ...], out: Path, with_action_space: bool, open_it: bool, root: str | Path) -> None:
    """Build the HTML report of runs: figures with intervals, comparisons, behaviour, data, training, cost.

    The file is self-contained: it can be mailed, put on any server or printed. Sections without data are left out.
    Several runs are shown side by side, and their models are compared on the questions that both were asked. The same
    runs give the same file.
    """
    from treadle.tasks.page.build import report_page
    from treadle.tasks.page.file import write_page

    named = dict.fromkeys(run_ids or (run_or_last(root),))
    runs = [_opened(root, given) for given in named]
    if with_action_space:
        from treadle.tasks.page.action_space import action_space_section

        content = report_page(runs, action_space_section)
    else:
        content = report_page(runs)
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


@click.command(short_help="Look at trajectories in a browser.", epilog="Example:  treadle view --run first")
@run_option
@root_option
@click.option(
    "--port", type=click.IntRange(0, 65535), default=DEFAULT_PORT, show_default=True, help="0 picks a free port."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Any loopback address.")
@click.option(
    "--open/--no-open", "open_page", default=True, help="Whether to open a browser. [default: if there is one]"
)
def view(run_id: str, root: str | Path, port: int, host: str, open_page: bool) -> None:
    """Show the trajectories of a run in a browser until Ctrl-C: filter, search, read, compare with parents.

    Only this machine can reach the server, and its pages load nothing from elsewhere. A run in progress can be viewed
    too: finished rows are shown, and more appear as they finish.
    """
    from treadle.core.runs.run import Run

    try:
        from treadle.viewer.app import make_app
        from treadle.viewer.server import serve
    except ImportError as error:
        raise ConfigError(f"the viewer needs the package {error.name}; install treadle with its extra viewer") from None
    from treadle.tasks.inspection.lineage import trace_back

    app = make_app(Run.open(root, run_id), lambda run, key: [step.as_dict() for step in trace_back(run, key)])

    def listening(url: str) -> None:
        say(f"showing run {run_id} on {url} (Ctrl-C stops it)")
        # A text browser would take over the terminal.
        if open_page and _has_browser():
            click.launch(url)

    # The server ends only by a signal.
    with contextlib.suppress(KeyboardInterrupt):
        serve(app, host, port, listening)
    raise Interrupted("stopped")


def _has_browser() -> bool:
    """Return whether a graphical browser can open, not one in the terminal."""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
