"""`treadle view`: the trajectories of a run in a browser, from a server on this machine alone."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import click

from treadle.core.errors import ConfigError
from treadle.flows.options import root_option, run_option, say

DEFAULT_PORT = 8484


@click.command(short_help="Look at trajectories in a browser.", epilog="Example:  treadle view --run first")
@run_option
@root_option
@click.option(
    "--port", type=click.IntRange(0, 65535), default=DEFAULT_PORT, show_default=True, help="0 takes a free one."
)
@click.option("--host", type=click.Choice(["127.0.0.1", "::1"]), default="127.0.0.1", show_default=True)
@click.option("--open/--no-open", "open_page", default=True, help="Whether to open a browser. [default: where one is]")
def view(run_id: str, root: str | Path, port: int, host: str, open_page: bool) -> None:
    """Show the trajectories of a run in a browser until Ctrl-C: filter, search, read, compare with parents.

    Only this machine can reach the server, and no page loads anything from elsewhere. A run that is still being made
    can be looked at: what has finished is shown, and more appears as it finishes.
    """
    from treadle.core.runs import Run

    try:
        from treadle.eval.viewer.app import make_app
        from treadle.eval.viewer.kin import Kin
        from treadle.eval.viewer.server import serve
    except ImportError as error:
        raise ConfigError(f"the viewer needs the package {error.name}; install treadle with its extra viewer") from None
    from treadle.tasks.inspection.lineage import trace_back
    from treadle.tasks.inspection.trajectory_changes import changes_between

    kin = Kin(lambda run, key: [step.as_dict() for step in trace_back(run, key)], changes_between)
    app = make_app(Run.open(root, run_id), kin)

    def listening(url: str) -> None:
        say(f"showing run {run_id} on {url} (Ctrl-C stops it)")
        if open_page and _has_browser():
            click.launch(url)

    # To stop it is its ordinary end.
    with contextlib.suppress(KeyboardInterrupt):
        serve(app, host, port, listening)
    say("stopped")


def _has_browser() -> bool:
    """Whether a browser would appear before the user, not in the terminal."""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
