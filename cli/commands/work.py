"""Define `treadle work`, which helps with stages that another process runs."""

from __future__ import annotations

from pathlib import Path

import click

from treadle.cli.options import json_option, named_run_option, root_option, say, set_option
from treadle.cli.warnings import show_warnings


@click.command(
    short_help="Help with a run that another process runs.", epilog="Example:  treadle work 1/pools --run first"
)
@click.argument("address", metavar="[INSTANCE]", required=False)
@named_run_option
@click.option("--wait", is_flag=True, help="Wait for the run and its stages to start; end when all are done.")
@set_option
@root_option
@json_option
def work(
    address: str | None, run_id: str, wait: bool, overrides: tuple[str, ...], root: str | Path, as_json: bool
) -> None:
    """Help with a stage INSTANCE that `run` or `stage` has started with `shards` above 1, on this machine or another.

    Works on shards that no other process has claimed, and ends when no shard is left. Any number of such processes
    may help; if one is killed, another continues its shard. The process that started the stage writes its result.

    Without INSTANCE it helps with all running instances of the run.
    """
    import json

    from treadle.cli.terminal import TerminalProgress
    from treadle.core.parent_watch import end_with_parent, outlives_parent
    from treadle.tasks.shard_worker import Helper, shards_text

    if not outlives_parent():
        end_with_parent()
    helper = Helper(
        root=root,
        run_id=run_id,
        address=address,
        overrides=overrides,
        show=lambda label: TerminalProgress(label, quiet=as_json),
        notify=say,
    )
    warnings = show_warnings()
    try:
        helper.help_until_done() if wait else helper.help_now()
    finally:
        warnings.report_omitted()
    counts = helper.counts or ({address: 0} if address else {})
    told = [{"address": name, "shards": count} for name, count in counts.items()]
    if as_json:
        click.echo(json.dumps(told[0] if address else told))
        return
    for name, count in counts.items():
        click.echo(f"{name}: {shards_text(count)}", err=True)
    if not counts:
        click.echo(f"run {run_id}: nothing to help with", err=True)
