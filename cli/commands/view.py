"""Define `treadle view`, which shows the trajectories of a run in a browser, served on this machine only."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import click

from treadle.cli.options import root_option, run_option, say
from treadle.core.errors import ConfigError, Interrupted

DEFAULT_PORT = 8484


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
