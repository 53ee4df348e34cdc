"""The command `work`: one more process at a stage that is under way."""

from __future__ import annotations

from pathlib import Path

import click

from treadle.flows.cli_run import set_option
from treadle.flows.options import json_option, root_option, say
from treadle.flows.warnings import show_warnings


@click.command(
    short_help="Help with a stage that another process runs.", epilog="Example:  treadle work 1/pools --run first"
)
@click.argument("address", metavar="INSTANCE")
@click.option("--run", "run_id", required=True, help="Name of the run.")
@set_option
@root_option
@json_option
def work(address: str, run_id: str, overrides: tuple[str, ...], root: str | Path, as_json: bool) -> None:
    """Help with a stage INSTANCE that `run` or `stage` has begun with `shards` above 1, on this machine or another.

    Works at shards that nobody else is at, and ends when none is left. Any number of such processes may help; a killed
    one's shard is taken over by another. The process that began the stage writes its result.
    """
    import json

    from treadle.core.parent import end_with_parent, stays_behind
    from treadle.flows.terminal import TerminalProgress
    from treadle.tasks.work import open_for_work, work_at

    if not stays_behind():
        end_with_parent()
    wanted, run = open_for_work(root, run_id, address, overrides)
    warnings = show_warnings()
    try:
        with TerminalProgress(str(wanted.address), quiet=as_json) as progress:
            count = work_at(wanted, run, progress=progress, notify=lambda line: None if as_json else say(line))
    finally:
        warnings.tell_rest()
    if as_json:
        click.echo(json.dumps({"address": str(wanted.address), "shards": count}))
    else:
        said = f"{count} shard{'s' * (count != 1)} worked through here" if count else "nothing left to help with"
        click.echo(f"{wanted.address}: {said}", err=True)
