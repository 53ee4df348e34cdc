"""Define `treadle logs`, which prints the logs of attempts."""

from __future__ import annotations

from pathlib import Path

import click

from treadle.cli.options import root_option, run_option, say
from treadle.core.untrusted.sanitize import sanitize


@click.command(
    short_help="Print the log of an attempt, or follow it.", epilog="Example:  treadle logs 1/rollouts@base -r first -f"
)
@click.argument("address", metavar="[INSTANCE]", required=False)
@run_option
@click.option("--attempt", "number", type=click.IntRange(min=1), metavar="N", help="Attempt. [default: the newest]")
@click.option(
    "-n", "--lines", "num_lines", type=click.IntRange(min=0), default=100, show_default=True, help="Last lines."
)
@click.option("-f", "--follow", is_flag=True, help="Print what is added until the attempt ends.")
@root_option
def logs(address: str | None, run_id: str, number: int | None, num_lines: int, follow: bool, root: str | Path) -> None:
    """Print the log of an attempt at INSTANCE; without it, of the attempt that started last."""
    from treadle.core.runs.address import Address
    from treadle.core.runs.run import Run
    from treadle.tasks.inspection.attempt_logs import attempt_log

    log = attempt_log(Run.open(root, run_id), Address.parse(address) if address else None, number)
    say(f"attempt {log.number} at {log.address}: {log.run.storage.location(log.key)}")
    for line in log.lines(num_lines, follow=follow):
        click.echo(sanitize(line.rstrip("\r")))
