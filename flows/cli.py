"""The `treadle` command line: reads arguments, calls what the Prefect flows call too, prints.

Errors of ours leave as one line on standard error with their exit code; the traceback is in the attempt's log.
Heavy modules are imported inside the commands, so that `treadle --help` answers at once.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

import click

from treadle.core.errors import TreadleError
from treadle.flows.cli_engines import doctor, env, serve, tutor
from treadle.flows.cli_inspect import lineage, show, status, verify
from treadle.flows.cli_run import demo, run, stage

INTERRUPTED = 130


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Start here:  treadle demo   |   treadle run configs/laptop.toml --run first   |   treadle doctor",
)
@click.version_option(package_name="treadle", prog_name="treadle")
def cli() -> None:
    """Treadle: a data flywheel for tool-using LLM agents.

    A run turns questions into scored rollouts, stage by stage. Every stage is resumable: run the same command again
    after any interruption and it goes on where it was.
    """


for command in (demo, run, stage, status, show, lineage, verify, doctor, env, serve, tutor):
    cli.add_command(command)


def main() -> None:
    """Entry point of the console script."""
    _install_signal_handlers()
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except TreadleError as error:
        click.echo(f"treadle: {' '.join(str(error).split())}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        click.echo("treadle: interrupted; everything finished so far is kept, the same command goes on", err=True)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _install_signal_handlers() -> None:
    """SIGTERM ends a command as Ctrl-C does; a second signal ends it at once (supervised children follow)."""

    def stop(signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, leave)
        signal.signal(signal.SIGTERM, leave)
        raise KeyboardInterrupt

    def leave(signum: int, frame: FrameType | None) -> None:
        os.write(2, b"\ntreadle: stopped at once; everything finished so far is kept\n")
        os._exit(INTERRUPTED)

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
